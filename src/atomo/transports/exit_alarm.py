"""A deadline for the exit of a process, after which the kernel ends it.

`MPI_Finalize` waits for all ranks, also for a stopped one, and holds the interpreter's lock
meanwhile: no Python thread or signal handler can run. The alarm signal therefore ends the process
by C's own `_exit`, which takes the signal number as exit code.
"""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["exit_after"]


@contextmanager
def exit_after(seconds: float) -> Iterator[None]:
    """Ends this process with exit code 14 (`errors.CUT_OFF`) if the block takes longer. Works in
    the main thread only.
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
