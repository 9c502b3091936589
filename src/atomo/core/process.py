"""Repairs of a process's environment: closed standard streams, a missing home folder."""

import os
import sys
from typing import Final, TextIO

__all__ = ["prepare_environment", "silence_output"]

STREAMS: Final = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def prepare_environment() -> None:
    """Opens closed standard streams on the null device, and sets HOME to `/` if it is missing.

    A closed stream's number would otherwise go to the next file that is opened, which then gets
    what was meant for people. Open MPI does not start without HOME, and other libraries would make
    a folder of the name `~`.
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
    """Returns a stream that takes everything and has nothing."""
    return open(os.devnull, mode, encoding="utf-8")  # type: ignore[return-value]


def silence_output() -> None:
    """Discards all output from now on: it cannot be written, and more would fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
