"""Log of the steps that followers have missed."""

from collections import deque
from collections.abc import Callable
from typing import final

from atomo.wire import Bytes

__all__ = ["FollowerLog", "StepFrames", "size"]

StepFrames = Callable[[int], list[Bytes]]
"""Returns the frames that lead a worker, by rank, from one version to the next."""


def size(frames: list[Bytes]) -> int:
    """Returns the bytes of all frames."""
    return sum(frame.size for frame in frames)


@final
class FollowerLog:
    """At which version each follower is, and the way from there to the newest one.

    Beside the last step, only what a follower may still need is kept, and never more than a
    snapshot is large: beyond that, the snapshot is the shorter way.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._at: dict[int, int] = {}
        self._log: deque[tuple[StepFrames, int]] = deque()  # the last leads to the newest; bytes

    def __contains__(self, worker: int) -> bool:
        return worker in self._at

    def join(self, worker: int) -> None:
        """Marks a worker as a follower at the newest version."""
        self._at[worker] = self.newest

    def leave(self, worker: int) -> None:
        """Marks a worker as no follower."""
        self._at.pop(worker, None)

    def advance(self, version: int, entry: StepFrames, snapshot_bytes: int) -> None:
        """Adds a version after the newest, with the frames that lead there.

        Args:
            version: its number.
            entry: what a worker at the version before needs.
            snapshot_bytes: of what serves in place of all entries.
        """
        oldest = min(self._at.values(), default=self.newest)
        self.newest = version
        self._log.append((entry, size(entry(0))))
        while len(self._log) > 1 and (
            len(self._log) > version - oldest
            or sum(bytes_ for _, bytes_ in self._log) > snapshot_bytes
        ):
            self._log.popleft()

    def behind(self, worker: int) -> int:
        """Returns the number of versions that a follower is behind."""
        return self.newest - self._at[worker]

    def missed(self, worker: int) -> list[Bytes] | None:
        """Returns the frames that lead a follower to the newest version; None if only a snapshot
        does.
        """
        steps = self.behind(worker)
        if steps > len(self._log):
            return None
        entries = list(self._log)[len(self._log) - steps :]
        return [frame for entry, _ in entries for frame in entry(worker)]

    def last(self, worker: int) -> list[Bytes] | None:
        """Returns the frames that lead from the previous to the newest version; None if unknown."""
        return self._log[-1][0](worker) if self._log else None
