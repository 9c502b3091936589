"""Log of the steps that followers have missed."""

from collections import deque
from collections.abc import Callable
from typing import final

from atomo.wire import Bytes

__all__ = ["FollowerLog", "StepFrames", "size"]

StepFrames = Callable[[int], list[Bytes]]
"""Returns the frames that bring a worker, given by its rank, from one version to the next."""


def size(frames: list[Bytes]) -> int:
    """Returns the bytes of all frames."""
    return sum(frame.size for frame in frames)


@final
class FollowerLog:
    """Log of the latest steps' frames, and the version of each follower's weights.

    The log holds the last step, and earlier steps only while a follower lacks them and the log has
    no more bytes than a snapshot: then the snapshot costs less.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._versions: dict[int, int] = {}
        self._log: deque[tuple[StepFrames, int]] = (
            deque()
        )  # frames of a step and their bytes; the last is of the newest version

    def __contains__(self, worker: int) -> bool:
        return worker in self._versions

    def join(self, worker: int) -> None:
        """Marks a worker as a follower at the newest version."""
        self._versions[worker] = self.newest

    def leave(self, worker: int) -> None:
        """Marks a worker as no follower."""
        self._versions.pop(worker, None)

    def advance(self, version: int, entry: StepFrames, snapshot_bytes: int) -> None:
        """Adds the next version with the frames that lead to it.

        Args:
            version: its number.
            entry: frames for a worker at the previous version.
            snapshot_bytes: size of a snapshot, bytes.
        """
        oldest = min(self._versions.values(), default=self.newest)
        self.newest = version
        self._log.append((entry, size(entry(0))))
        while len(self._log) > 1 and (
            len(self._log) > version - oldest
            or sum(bytes_ for _, bytes_ in self._log) > snapshot_bytes
        ):
            self._log.popleft()

    def versions_missed(self, worker: int) -> int:
        """Returns the number of versions that a follower has missed."""
        return self.newest - self._versions[worker]

    def missed(self, worker: int) -> list[Bytes] | None:
        """Returns the frames that bring a follower to the newest version; None if the log no longer
        has them.
        """
        steps = self.versions_missed(worker)
        if steps > len(self._log):
            return None
        entries = list(self._log)[len(self._log) - steps :]
        return [frame for entry, _ in entries for frame in entry(worker)]

    def last(self, worker: int) -> list[Bytes] | None:
        """Returns the frames that lead from the previous to the newest version; None if unknown."""
        return self._log[-1][0](worker) if self._log else None
