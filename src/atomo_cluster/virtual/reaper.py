"""The duties of the first process of a PID namespace."""

import os
import signal
from contextlib import suppress

__all__ = ["detach", "reap_for_ever"]


def detach() -> None:
    """Closes the pipes to the starter of this process, which would wait for their end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1):
        os.dup2(nothing, file)


def reap_for_ever() -> None:
    """Reaps orphans, which become children of the first process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})
