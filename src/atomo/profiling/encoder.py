"""Something to encode beside a backward pass."""

import threading
from types import TracebackType
from typing import final

import torch
from torch import Generator

from atomo.codecs import make_codec

__all__ = ["Encoder"]


@final
class Encoder:
    """Encodes the same entries again and again, in a thread of its own for a `with` block."""

    def __init__(self, entries: int) -> None:
        self.count = 0
        """How often, in the block."""
        self._entries = torch.randn(entries, generator=Generator().manual_seed(1))
        self._codec = make_codec("efsignsgd")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def encode(self) -> None:
        """Once."""
        self._codec.encode(self._entries, Generator().manual_seed(1))

    def __enter__(self) -> "Encoder":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(1)
        while not self._ended.is_set():
            self.encode()
            self.count += 1
