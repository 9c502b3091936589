"""A request that the run ends, which any rank of a torch.distributed job can make.

The signal that announces the eviction of a host reaches the ranks of that host alone. Rank 0, which
writes checkpoints, is on another host, and learns of the signal through the store of the job.
"""

import time
from contextlib import suppress
from typing import Final, final

from torch.distributed.distributed_c10d import PrefixStore

__all__ = ["EndRequest"]

KEY: Final = "atomo/end-requests"  # the number of requests
POLL_S: Final = 0.5  # the shortest time between two questions to the store


@final
class EndRequest:
    """The request as one rank sees it."""

    def __init__(self, store: PrefixStore) -> None:
        """Creates a request that is not made.

        Args:
            store: the store of this start of the job.
        """
        self._store, self._is_made, self._next_poll_s = store, False, 0.0

    def make(self) -> None:
        """Makes the request; a signal handler may call it."""
        self._is_made = True
        with suppress(RuntimeError):  # the store's process has ended, and so does the job
            self._store.add(KEY, 1)

    def is_made(self) -> bool:
        """Returns True if a rank has made the request, at most `POLL_S` late."""
        now = time.monotonic()
        if not self._is_made and now >= self._next_poll_s:
            self._next_poll_s = now + POLL_S
            with suppress(RuntimeError):
                self._is_made = self._store.add(KEY, 0) > 0
        return self._is_made
