"""A bound on the last thing that a process does, where no Python can run any more to end it.

MPI's goodbye waits for all ranks, also for one that is stopped, and holds the interpreter's lock
while it does: neither a thread nor a handler in Python would get to run. So the system's alarm ends
the process, with a handler that is C's own `_exit`, which takes the number of the signal for the
exit code.
"""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["at_most"]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ends this process with exit code 14 (`errors.CUT_OFF`) if the block takes longer; in the main
    thread only.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGALRM, ctypes.cast(libc._exit, ctypes.c_void_p))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
