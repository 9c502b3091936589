"""Writes with later retries: a run that cannot write continues to train.

A record reports the first failure, and another the first success after failures. The delay between
attempts begins with 1 s and doubles up to a minute: a disk that is full for an hour costs sixty
attempts, and a short outage costs a second.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from atomo.errors import CheckpointError
from atomo.training.folder.ownership import FolderTaken
from atomo.training.folder.run_folder import Wait
from atomo.training.job.events import Storage

__all__ = ["FIRST_S", "LONGEST_S", "RetryingWriter"]

FIRST_S: Final = 1.0  # from the first failure to the second attempt
LONGEST_S: Final = 60.0  # between two attempts


@final
class RetryingWriter:
    """Writer of one kind of file of a run, with the state of its retries.

    Args:
        kind: the kind, a plural, as in "checkpoints".
        tell: receives a record at the first failure, and at the next success.
        clock: in seconds.
    """

    def __init__(
        self,
        kind: str,
        tell: Callable[[Storage], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        """Attempts that failed so far."""
        self._kind, self._tell, self._clock = kind, tell, clock
        self._since = self._next = self._delay_s = 0.0
        self._row = 0  # failures since the last success
        self._why = ""  # the reason of the last failure

    @property
    def works(self) -> bool:
        """True if the last attempt succeeded."""
        return not self._row

    @property
    def due(self) -> bool:
        """True if an attempt failed and another is due."""
        return not self.works and self._clock() >= self._next

    def attempt(self, write: Callable[[], object]) -> bool:
        """Writes; returns False after a failure.

        Raises:
            FolderTaken: another run owns the folder, and this run must not write there any more.
        """
        try:
            write()
        except FolderTaken:
            raise
        except (CheckpointError, OSError) as error:
            self._failed(error)
            return False
        self._worked()
        return True

    def insist(self, write: Callable[[], object], patience_s: float, wait: Wait) -> None:
        """Writes, and retries for `patience_s`.

        Raises:
            CheckpointError: all attempts failed.
        """
        waited_s, begun_s = 0.0, self._clock()
        while not self.attempt(write):
            delay_s = min(
                self._delay_s, LONGEST_S / 12
            )  # shorter than in training: other ranks wait
            if max(waited_s, self._clock() - begun_s) >= patience_s:
                raise CheckpointError(f"{self._why}; tried for {patience_s:g} s")
            wait(delay_s)
            waited_s += delay_s

    def _failed(self, error: Exception) -> None:
        now = self._clock()
        self._why = str(error)
        self.failures += 1
        self._row += 1
        self._delay_s = min(2 * self._delay_s, LONGEST_S) if self._row > 1 else FIRST_S
        self._next = now + self._delay_s
        if self._row == 1:
            self._since = now
            self._say(works=False, text=f"{error}; training continues, and tries again")

    def _worked(self) -> None:
        if self.works:
            return
        away_s, self._row, row = self._clock() - self._since, 0, self._row
        times = f"{row} attempt{'s' * (row > 1)} in {away_s:.1f} s"
        self._say(works=True, text=f"{self._kind} can be written again, after {times} that failed")

    def _say(self, *, works: bool, text: str) -> None:
        with suppress(OSError):  # the log may be on the same disk
            self._tell(Storage(self._kind, works, self.failures, text))
