"""The command line `atomo COMMAND`: each command of `COMMANDS` is a module of this package."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from atomo.core.distribution import versions
from atomo.core.process.collector import import_for_good
from atomo.core.process.deferred import defer
from atomo.core.process.program import dispatch

__all__ = ["main"]

# Each command is a module of this package with `main(arguments) -> exit code`, imported when used.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "train": "train a model: starts a master, its workers and an evaluator",
        "sweep": "train once for each of several values, and name the best",
        "evaluate": "follow a run's checkpoints and evaluate each of them",
        "report": "write a page about a run that opens in any browser",
        "throughput": "measure how fast whole jobs are, with compression and without",
        "explain": "predict steps over given links with each codec: does compression pay?",
        "bench": "measure codecs: speed, bytes and error, on your own gradients",
        "inspect": "show a gradient, and the error of codecs on it",
        "prepare": "download and verify data sets",
        "completion": "print a script with which bash, zsh or fish completes commands and options",
        "probe": "run one rank of a probe of hosts and links; `explain --probe` starts these",
        "rank": "run one rank of a job; `train` starts these through mpirun",
    }
)
# A file `inspect.py` would hide a module of Python from programs that start in this folder.
MODULES: Final[Mapping[str, str]] = MappingProxyType({"inspect": "inspect_gradient"})

# Commands that start processes or read their records, and compute nothing themselves.
DEFERRING: Final = frozenset({"train", "sweep", "throughput", "report"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (`atomo.errors` lists them)."""
    return dispatch("atomo", COMMANDS, usage, versions, act, arguments)


def act(name: str, words: list[str]) -> int:
    """Imports the module of the command, and runs it."""
    if name in DEFERRING:
        defer("torch")
    module = import_for_good(f"atomo.cli.{MODULES.get(name, name)}")
    run: Callable[[Sequence[str]], int] = module.main
    return run(words)


def usage() -> str:
    """Returns the text of `atomo --help`."""
    lines = [f"  {name:12}{text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: atomo COMMAND [OPTION ...]", "", *lines, "",
                      "`atomo COMMAND --help` lists the options of a command; `atomo --version`",
                      "names the release.", ""])  # fmt: skip
