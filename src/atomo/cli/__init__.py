"""The command line: `atomo COMMAND`, a module of this package each; `COMMANDS` lists them."""

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
        "sweep": "train once for each of some values, and say which are best",
        "evaluate": "follow a run's checkpoints and evaluate each of them",
        "throughput": "measure how fast whole jobs are, with compression and without",
        "explain": "predict steps over given links with each codec: does compression pay?",
        "bench": "measure codecs: speed, bytes and error, on your own gradients",
        "inspect": "look at a gradient, and at what codecs lose of it",
        "prepare": "download and verify data sets",
        "probe": "be one rank of what measures hosts and links; `explain --probe` starts these",
        "rank": "be one rank of a job; `train` starts these through mpirun",
    }
)
# A file `inspect.py` would hide a module of Python from programs that start in this folder.
MODULES: Final[Mapping[str, str]] = MappingProxyType({"inspect": "inspect_gradient"})

# They start the processes that compute, and compute nothing themselves.
LAUNCHERS: Final = frozenset({"train", "sweep", "throughput"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (`atomo.errors` lists them)."""
    return dispatch("atomo", COMMANDS, usage, versions, act, arguments)


def act(name: str, words: list[str]) -> int:
    """Runs the command of this name, and imports what it needs only now."""
    if name in LAUNCHERS:
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
