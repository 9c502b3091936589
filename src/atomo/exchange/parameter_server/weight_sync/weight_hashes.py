"""Queries for the hash of workers' weights, and the comparison with the master's."""

from collections import Counter
from typing import Final, final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError
from atomo.exchange.parameter_server.frames.messages import digest, hash_order, read_hash
from atomo.wire import Bytes

__all__ = ["CHECK_EVERY", "WeightHashes"]

CHECK_EVERY: Final = 50  # steps between two comparisons of the weights
PATIENCE: Final = 2  # a worker whose weights differ so often gets them whole from then on


@final
class WeightHashes:
    """Queries, expected hashes, and workers whose weights differed."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}  # the version, by worker: never twice for the same
        self._due: dict[int, tuple[int, bytes]] = {}
        self._latest = (-1, b"")
        self._differed: Counter[int] = Counter()

    def due(self, version: int) -> bool:
        """True if all workers are compared at this version."""
        return version > 0 and version % CHECK_EVERY == 0

    def ask(self, worker: int, version: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        """Returns the query to a worker that should have these weights; empty if it was asked
        already.
        """
        if self._asked.get(worker) == version:
            return []
        if self._latest[0] != version:
            self._latest = version, digest(weights)
        self._asked[worker], self._due[worker] = version, self._latest
        return [hash_order(version)]

    def awaits(self, worker: int) -> bool:
        """True if a worker owes an answer."""
        return worker in self._due

    def cancel(self, worker: int) -> None:
        """Cancels the query of a worker."""
        self._due.pop(worker, None)

    def is_unfit(self, worker: int) -> bool:
        """True if a worker's weights differed too often for it to follow."""
        return self._differed[worker] >= PATIENCE

    def difference(self, worker: int, frame: Bytes) -> str:
        """Returns a note for the user about a worker's answer; empty if its weights are right.

        Raises:
            FrameError: the frame answers nothing that was asked.
        """
        version, weight_hash = read_hash(frame)
        due = self._due.pop(worker, (None, b""))
        if due[0] != version:
            raise FrameError(f"worker {worker} sent a hash of version {version}; due: {due[0]}")
        if weight_hash == due[1]:
            return ""
        self._differed[worker] += 1
        return note_of(worker, version, self.is_unfit(worker))


def note_of(worker: int, version: int, unfit: bool) -> str:
    """Returns a note for the user about weights that differ from the master's."""
    what = (
        f"worker {worker} had other weights than the master after step {version}"
        if version
        else f"worker {worker} built other initial weights than the master"
    )
    then = "it gets all weights at every step from now on" if unfit else "it gets the master's"
    return f"{what} (another processor, or another version of PyTorch, rounds otherwise); {then}"
