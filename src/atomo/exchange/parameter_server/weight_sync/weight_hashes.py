"""Queries for the hashes of workers' weights, and their comparison with the master's hash."""

from collections import Counter
from typing import Final, final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError
from atomo.exchange.parameter_server.frames.messages import digest, hash_order, read_hash
from atomo.wire import Bytes

__all__ = ["CHECK_EVERY", "WeightHashes"]

CHECK_EVERY: Final = 50  # steps between two comparisons of the weights
MAX_MISMATCHES: Final = 2  # after so many, a worker gets all weights at each step


@final
class WeightHashes:
    """Queries, expected hashes, and counts of mismatches by worker."""

    def __init__(self) -> None:
        self._queried: dict[int, int] = {}  # last queried version by worker
        self._expected: dict[int, tuple[int, bytes]] = {}
        self._latest = (-1, b"")
        self._mismatches: Counter[int] = Counter()

    def due(self, version: int) -> bool:
        """True if all workers are compared at this version."""
        return version > 0 and version % CHECK_EVERY == 0

    def ask(self, worker: int, version: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        """Returns the query to a worker that should have these weights; empty if the worker has one
        for this version already.
        """
        if self._queried.get(worker) == version:
            return []
        if self._latest[0] != version:
            self._latest = version, digest(weights)
        self._queried[worker], self._expected[worker] = version, self._latest
        return [hash_order(version)]

    def awaits(self, worker: int) -> bool:
        """True if a worker owes an answer."""
        return worker in self._expected

    def cancel(self, worker: int) -> None:
        """Cancels the query of a worker."""
        self._expected.pop(worker, None)

    def is_unfit(self, worker: int) -> bool:
        """True if a worker had too many mismatches to follow."""
        return self._mismatches[worker] >= MAX_MISMATCHES

    def difference(self, worker: int, frame: Bytes) -> str:
        """Returns a note for the user about a worker's answer; empty if the hashes are equal.

        Raises:
            FrameError: no query for this version is open.
        """
        version, weight_hash = read_hash(frame)
        expected = self._expected.pop(worker, (None, b""))
        if expected[0] != version:
            raise FrameError(
                f"worker {worker} sent a hash of version {version}; due: {expected[0]}"
            )
        if weight_hash == expected[1]:
            return ""
        self._mismatches[worker] += 1
        return note_of(worker, version, self.is_unfit(worker))


def note_of(worker: int, version: int, unfit: bool) -> str:
    """Returns a note for the user about weights that differ from the master's."""
    mismatch = (
        f"worker {worker} had other weights than the master after step {version}"
        if version
        else f"worker {worker} built other initial weights than the master"
    )
    action = "it gets all weights at every step from now on" if unfit else "it gets the master's"
    return (
        f"{mismatch} (another processor, or another version of PyTorch, rounds otherwise); {action}"
    )
