"""Writes that are tried again later: a run that cannot write trains on, and says so twice.

Once when something can no longer be written, and once when it can again. Between two attempts it
waits 1 s, then twice as long each time, up to a minute: a disk that is full for an hour costs sixty
attempts, and one that is away for a moment costs a second.
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
    """One thing that a run writes, and whether it can be written.

    Args:
        what: it is, as in "checkpoints"; a plural.
        tell: gets a record when it begins to fail, and when it works again.
        clock: seconds.
    """

    def __init__(
        self,
        what: str,
        tell: Callable[[Storage], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        """Attempts that failed so far."""
        self._what, self._tell, self._clock = what, tell, clock
        self._since = self._next = self._delay_s = 0.0
        self._row = 0  # failures since it last worked
        self._why = ""  # the last one

    @property
    def works(self) -> bool:
        """True if the last attempt succeeded."""
        return not self._row

    @property
    def due(self) -> bool:
        """True if an attempt failed and it is time for another."""
        return not self.works and self._clock() >= self._next

    def attempt(self, write: Callable[[], object]) -> bool:
        """Writes; returns False if that failed.

        Raises:
            FolderTaken: another run has the folder, and nothing may be written there any more.
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
        """Writes what there is no later time for, and tries for `patience_s`.

        Raises:
            CheckpointError: it still cannot be written.
        """
        waited_s, begun = 0.0, self._clock()
        while not self.attempt(write):
            delay_s = min(self._delay_s, LONGEST_S / 12)  # ranks wait, so sooner than in training
            if max(waited_s, self._clock() - begun) >= patience_s:
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
            self._say(works=False, text=f"{error}; training goes on, and it is tried again")

    def _worked(self) -> None:
        if self.works:
            return
        away_s, self._row, row = self._clock() - self._since, 0, self._row
        times = f"{row} attempt{'s' * (row > 1)} in {away_s:.1f} s"
        self._say(works=True, text=f"{self._what} can be written again, after {times} that failed")

    def _say(self, *, works: bool, text: str) -> None:
        with suppress(OSError):  # whoever shows it may have the same disk
            self._tell(Storage(self._what, works, self.failures, text))
