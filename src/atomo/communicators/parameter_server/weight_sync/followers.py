"""Workers that keep up with the master, step by step, and the steps that they have yet to learn."""

from collections import deque
from collections.abc import Callable
from typing import final

from atomo.wire import Bytes

__all__ = ["FollowerLog", "StepFrames", "size"]

StepFrames = Callable[[int], list[Bytes]]
"""What leads a worker, by its rank, from one version to the next."""


def size(frames: list[Bytes]) -> int:
    """Bytes of all of them."""
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
        """A worker is at the newest version."""
        self._at[worker] = self.newest

    def leave(self, worker: int) -> None:
        """A worker does not follow, or no longer."""
        self._at.pop(worker, None)

    def advance(self, version: int, entry: StepFrames, snapshot_bytes: int) -> None:
        """There is a version after the newest, to which `entry` leads.

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
        """How many versions a follower is behind the newest."""
        return self.newest - self._at[worker]

    def missed(self, worker: int) -> list[Bytes] | None:
        """What leads a follower to the newest version, or None where only a snapshot does."""
        steps = self.behind(worker)
        if steps > len(self._log):
            return None
        entries = list(self._log)[len(self._log) - steps :]
        return [frame for entry, _ in entries for frame in entry(worker)]

    def last(self, worker: int) -> list[Bytes] | None:
        """What leads to the newest version from the one before it; None: it is not known."""
        return self._log[-1][0](worker) if self._log else None
