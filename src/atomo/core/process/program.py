"""Entry points of command-line programs: choice of the command, exit codes, signals."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from atomo.core.distribution import missing_package
from atomo.core.names import nearest
from atomo.core.process.environment import prepare_environment, silence_output
from atomo.core.visible import visible
from atomo.errors import INTERRUPTED, AtomoError, ConfigError

__all__ = ["NO_ROOM", "dispatch", "signals_handled"]

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def dispatch(
    program: str,
    commands: Mapping[str, str],
    usage: Callable[[], str],
    versions: Callable[[], str],
    act: Callable[[str, list[str]], int],
    arguments: Sequence[str] | None,
) -> int:
    """Runs one command and returns its exit code (`atomo.errors` lists them).

    Args:
        program: the name, for messages.
        commands: the commands by name.
        usage: returns the text of `--help`.
        versions: returns the line of `--version`.
        act: runs the command of a name with the words after it.
        arguments: the command line; None: that of this process.
    """
    prepare_environment()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        sys.stdout.write(f"{versions()}\n")
        return 0
    name, *options = words
    if name not in commands:
        sys.stderr.write(f"{program}: unknown command {name!r}; {nearest(name, commands)}\n")
        return 2
    return run_command(f"{program} {name}", lambda: act(name, options))


def run_command(label: str, act: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; an expected error becomes a line on stderr.

    Args:
        label: the program and the command, for messages.
        act: the command.
    """
    try:
        code = act()
        sys.stdout.flush()  # here, where an error is handled, and not at exit
        return code
    except AtomoError as error:
        return report(label, error)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:  # a defect
            raise
        return report(label, missing)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output is gone, as in `atomo train | head`
        silence_output()
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not has_working_folder():
            sys.stderr.write(f"{label}: the working folder is gone; change to another\n")
            return ConfigError.exit_code
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        silence_output()  # errors of a run's own files have another type
        sys.stderr.write(f"{label}: cannot write the output: {error.strerror}\n")
        return AtomoError.exit_code


def report(label: str, error: AtomoError) -> int:
    """Writes the line of an expected error, and returns the exit code."""
    sys.stderr.write(f"{label}: {visible(str(error))}\n")
    return error.exit_code


def has_working_folder() -> bool:
    """Returns False where the working folder of this process was removed."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


@contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Calls `handler` for Ctrl-C, SIGTERM and a closed terminal during the block."""
    # A signal that is ignored, as under nohup, stays ignored.
    numbers = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
