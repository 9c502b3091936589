"""Which workers were asked for the hash of their weights, and what it should be."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.messages import digest, hash_order, read_hash
from atomo.errors import FrameError
from atomo.wire import Bytes

__all__ = ["Hashes"]


@final
class Hashes:
    """Asks, and compares."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[int, bytes]] = {}
        self._latest = (-1, b"")

    def ask(self, worker: int, version: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        """The question to a worker that should have these weights; none where it was just asked."""
        if self._due.get(worker, (-1, b""))[0] == version:
            return []
        if self._latest[0] != version:
            self._latest = version, digest(weights)
        self._due[worker] = self._latest
        return [hash_order(version)]

    def awaits(self, worker: int) -> bool:
        """Whether a worker has yet to answer."""
        return worker in self._due

    def differs(self, worker: int, frame: Bytes) -> int | None:
        """The version at which a worker turns out to have other weights, or None.

        Raises:
            FrameError: the frame answers nothing that was asked.
        """
        version, found = read_hash(frame)
        due = self._due.pop(worker, (None, b""))
        if due[0] != version:
            raise FrameError(f"worker {worker} sent a hash of version {version}; due: {due[0]}")
        return version if found != due[1] else None
