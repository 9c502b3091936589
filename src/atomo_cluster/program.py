"""Parts of programs with commands: dispatch, exit codes, signals."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, MappingProxyType
from typing import Final

from atomo_cluster.errors import INTERRUPTED, ClusterError
from atomo_cluster.names import nearest
from atomo_cluster.visible import visible

__all__ = ["dispatch", "handled"]

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def dispatch(
    program: str,
    commands: Mapping[str, str],
    usage: Callable[[], str],
    act: Callable[[str, list[str]], int],
    arguments: Sequence[str] | None,
    successors: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Runs one command and returns its exit code (`atomo_cluster.errors` lists them).

    Args:
        program: the program's name, for messages.
        commands: the commands, by name.
        usage: returns the text of `--help`.
        act: runs the command of a name with the words that follow it.
        arguments: the command line; None: that of this process.
        successors: what does the work of a command of the published program that is gone.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if words else 2
    name, *following = words
    if name not in commands:
        hint = successors.get(name) or nearest(name, commands)
        sys.stderr.write(f"{program}: unknown command {name!r}; {hint}\n")
        return 2
    try:
        return act(name, following)
    except ClusterError as error:
        sys.stderr.write(f"{program} {name}: {visible(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output is gone, as in `status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handles Ctrl-C, SIGTERM and a closed terminal with `handler` during the block."""
    numbers = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]  # as nohup does
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
