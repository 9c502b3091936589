"""Calls on folders that may hang: the supervisor waits for an answer for a bounded time only.

A process that waits for a dead NFS server cannot be killed. A call that hangs is therefore left
alone in its thread, and no other call is made until it has ended.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Final, TypeVar, final

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.supervisor.background import Background, in_thread
from atomo_cluster.ec2.supervisor.loop import Store, Training
from atomo_cluster.errors import RemoteError

__all__ = ["LOOK_S", "STOP_S", "BoundedCalls", "BoundedJob", "BoundedStore"]

LOOK_S: Final = 30.0
STOP_S: Final = 100.0  # more than LEAVE_S; with LOOK_S and LAST_S less than the MARGIN of money
T = TypeVar("T")


@final
class BoundedCalls:
    """Calls on one folder, one at a time."""

    def __init__(self, folder: str, background: Background = in_thread) -> None:
        self._folder, self._background = folder, background
        self._pending: Future[None] | None = None

    def call(self, act: Callable[[], T], bound_s: float) -> T:
        """Returns the result of an action.

        Raises:
            RemoteError: it has no result within `bound_s`, or an earlier one has none yet.
            Exception: that of the action.
        """
        if self._pending is None or self._pending.done():
            results: list[T] = []
            self._pending = self._background(lambda: results.append(act()))
            wait([self._pending], bound_s)
            if self._pending.done():
                self._pending.result()  # unbounded: it is done
                return results[0]
        raise RemoteError(f"{self._folder} does not answer")


@final
class BoundedJob:
    """A job whose folder may hang.

    `running` looks at the job, and so does `stop`; `code` and `withdrawn` are of the last look.
    """

    def __init__(self, job: Training, background: Background = in_thread) -> None:
        self._job, self._calls = job, BoundedCalls("the folder of the jobs or results", background)
        self._state: tuple[bool, int | None, bool] = (False, None, False)

    @property
    def running(self) -> bool:
        """True if the job runs.

        Raises:
            RemoteError: the folder of the jobs or results does not answer.
        """
        self._state = self._calls.call(self._look, LOOK_S)
        return self._state[0]

    @property
    def code(self) -> int | None:
        """The exit code; None: the job runs, or was not started."""
        return self._state[1]

    @property
    def withdrawn(self) -> bool:
        """True if `stop` has ended the job."""
        return self._state[2]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the job, from a file on the master's disk."""
        return self._job.hosts

    @property
    def needed(self) -> int:
        """The fewest hosts on which the job may run."""
        return self._job.needed

    def start(self, hosts: Sequence[Instance], network: str) -> None:
        """Starts the job.

        Raises:
            RemoteError: it cannot be started, or the folder of the jobs does not answer.
        """
        self._calls.call(lambda: self._job.start(hosts, network), STOP_S)

    def stop(self, notified: bool = False) -> None:
        """Makes the job write a checkpoint and end.

        Raises:
            RemoteError: the folder of the jobs or results does not answer.
        """
        self._state = self._calls.call(lambda: self._stop(notified), STOP_S)

    def forget(self) -> None:
        """Forgets the exit code, so that the job can be started again."""
        self._job.forget()
        self._state = (self._state[0], None, False)

    def _stop(self, notified: bool) -> tuple[bool, int | None, bool]:
        self._job.stop(notified)
        return self._look()

    def _look(self) -> tuple[bool, int | None, bool]:
        """Returns whether the job runs, its exit code, and whether it was withdrawn."""
        if self._job.running:
            return True, None, False
        return False, self._job.code, self._job.withdrawn


@final
class BoundedStore:
    """A place of results whose folder may hang."""

    def __init__(self, store: Store, background: Background = in_thread) -> None:
        self._store, self._calls = store, BoundedCalls("the folder of the results", background)

    def sync(self) -> None:
        """Stores new results, beside the loop."""
        self._store.sync()

    def finish(self) -> None:
        """Stores all present results, as far as its bound allows."""
        self._store.finish()

    @property
    def safe(self) -> bool:
        """True if the results are stored outside the master's disk.

        Raises:
            RemoteError: the folder of the results does not answer.
        """
        return self._calls.call(lambda: self._store.safe, LOOK_S)
