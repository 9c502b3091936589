"""The command line: `atomo train`, `atomo evaluate`, `atomo prepare`."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from atomo.errors import INTERRUPTED, AtomoError
from atomo.names import nearest

__all__ = ["main"]

# Each command is a module of this package with `main(arguments) -> exit code`, imported when used.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "train": "train a model: starts a master, its workers and an evaluator",
        "evaluate": "follow a run's checkpoints and evaluate each of them",
        "bench": "measure codecs: speed, bytes and error, on your own gradients",
        "inspect": "look at a gradient, and at what codecs lose of it",
        "prepare": "download and verify data sets",
        "rank": "be one rank of a job; `train` starts these through mpirun",
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (`atomo.errors` lists them)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if words else 2
    name, *rest = words
    if name not in COMMANDS:
        sys.stderr.write(f"atomo: unknown command {name!r}; {nearest(name, COMMANDS)}\n")
        return 2
    try:
        run: Callable[[Sequence[str]], int] = import_module(f"atomo.cli.{name}").main
        return run(rest)
    except AtomoError as error:
        sys.stderr.write(f"atomo {name}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # who read our output is gone, as in `atomo train | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED


def usage() -> str:
    """What `atomo --help` says."""
    lines = [f"  {name:10}{text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: atomo COMMAND [OPTION ...]", "", *lines, "",
                      "`atomo COMMAND --help` lists the options of a command.", ""])  # fmt: skip
