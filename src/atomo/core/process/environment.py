"""Repairs of a process's environment: closed standard streams, a missing home folder."""

import os
import sys
from typing import Final, TextIO

__all__ = ["prepare_environment", "silence_output"]

STREAMS: Final = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def prepare_environment() -> None:
    """Opens closed standard streams on the null device, and sets HOME to `/` if it is missing.

    The next opened file would otherwise get a closed stream's number, and with it the output for
    the user. Open MPI does not start without HOME, and other libraries would make a folder named
    `~`.
    """
    for number, name, mode in STREAMS:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, null_stream(mode))
    os.environ.setdefault("HOME", "/")


def null_stream(mode: str) -> TextIO:
    """Returns a stream on the null device."""
    return open(os.devnull, mode, encoding="utf-8")  # type: ignore[return-value]


def silence_output() -> None:
    """Discards all later output: it cannot be written, and another write would fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
