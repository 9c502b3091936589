"""The scales that all workers of a step encode with: the largest that they ask for."""

from collections.abc import Collection, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError, FrameFault
from atomo.exchange.compressor import Compressor
from atomo.wire import Bytes, Kind, read_header, unpack

__all__ = ["Scales", "adopt_largest", "read_scales"]


def adopt_largest(
    compressor: Compressor, names: Sequence[str], proposals: Sequence[Sequence[float]]
) -> None:
    """Has a compressor encode with the largest scale that any rank proposes, part by part.

    Args:
        compressor: of this rank.
        names: the first parameter of each part, the same on all ranks.
        proposals: the scales that each rank proposes for these parts.
    """
    largest = map(max, zip(*proposals, strict=True))
    compressor.agree(dict(zip(names, largest, strict=True)))


def read_scales(frame: Bytes, *counts: int) -> list[float]:
    """Reads the scales in a frame, as many as one of `counts` says.

    Raises:
        FrameError: it is another frame, or does not hold so many finite magnitudes.
    """
    kind = read_header(frame).kind
    if kind is not Kind.SCALES:
        raise FrameError(f"scales were expected, not a {kind.name}", FrameFault.STRANGE)
    scales = unpack(frame, [Field(torch.float64, (max(counts),))])[0]
    if len(scales) not in counts:
        raise FrameError(f"{len(scales)} scales came, and {max(counts)} were expected")
    if not bool((scales.isfinite() & (scales >= 0)).all()):
        raise FrameError(
            f"scales must be finite and not negative, got {scales.tolist()}", FrameFault.NUMBERS
        )
    found: list[float] = scales.tolist()
    return found


@final
class Scales:
    """The scales that workers request in one step. Late workers take the scales agreed on."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._asked: set[int] = set()
        self._waiting: list[int] = []
        self._agreed: list[float] = []

    @property
    def section(self) -> Float[Tensor, " n"]:
        """The scales agreed on, for a frame."""
        return torch.tensor(self._agreed, dtype=torch.float64)

    def has_asked(self, worker: int) -> bool:
        """Returns True if a worker has made its request."""
        return worker in self._asked

    def ask(self, worker: int, asked: Sequence[float]) -> list[int]:
        """Takes what a worker asks for, and returns who is to be told what was agreed on."""
        if self._needed:
            self._agreed = [*map(max, asked, self._agreed or asked)]
            self._needed -= 1
        self._asked.add(worker)
        self._waiting.append(worker)
        return self._told()

    def lose(self, worker: int, left: Collection[int]) -> list[int]:
        """Waits no longer for a worker that is gone, and returns who is to be told thereupon.

        Args:
            worker: its rank. What it asked for counts.
            left: who may still ask.
        """
        self._waiting = [other for other in self._waiting if other != worker]
        self._needed = min(self._needed, len({*left} - self._asked))
        return self._told()

    def _told(self) -> list[int]:
        if self._needed:
            return []
        told, self._waiting = self._waiting, []
        return told
