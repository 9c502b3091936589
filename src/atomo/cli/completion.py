"""`atomo completion`: prints a script with which a shell completes commands, options and names."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final

from atomo.cli import COMMANDS
from atomo.cli.parsers import options_of, parser_of
from atomo.codecs import CODECS
from atomo.config.comm_types import COMM_TYPES
from atomo.core.arguments import Parser
from atomo.memory import MEMORIES
from atomo.options.recipes import RECIPES
from atomo.workloads import TASKS
from atomo.workloads.datasets import DATASETS
from atomo.workloads.models import MODELS

__all__ = ["main"]

DESCRIPTION: Final = """\
Prints a script with which a shell completes the commands of atomo, their options, and the names of
codecs, networks, data sets and the like.

  atomo completion bash > ~/.local/share/bash-completion/completions/atomo
  atomo completion zsh > ~/.zfunc/_atomo     # a folder of $fpath
  atomo completion fish > ~/.config/fish/completions/atomo.fish"""
# Read before the other options, by a parser of its own (`atomo.launch.cli_settings`).
CONFIG: Final = argparse.Action(["--config"], "config", help="files of settings")
CONFIGURED: Final = frozenset({"train", "sweep", "throughput", "rank"})
WIDTH: Final = 72  # of a description, in characters
NAMES: Final[Mapping[str, Callable[[], list[str]]]] = MappingProxyType(
    {
        "--code": lambda: sorted(CODECS),
        "--comm-type": lambda: sorted(COMM_TYPES),
        "--dataset": lambda: sorted(DATASETS),
        "--memory": lambda: sorted(MEMORIES),
        "--network": lambda: sorted(MODELS),
        "--recipe": lambda: sorted(RECIPES),
        "--task": lambda: sorted(TASKS),
    }
)
BASH: Final = """\
_atomo() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} known=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    known="{commands}"
  else
    case $before in
{values}
    esac
  fi
  if [ -z "$known" ] && [[ $word == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{options}
    esac
  fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o default -F _atomo atomo # files where nothing else is known
"""
ZSH: Final = """\
#compdef atomo
_atomo() {{
  local -a known
  if (( CURRENT == 2 )); then
    known=({commands})
    _describe command known
    return
  fi
  case ${{words[CURRENT-1]}} in
{values}
  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    case ${{words[2]}} in
{options}
    esac
    _describe -o option known
  else
    _files
  fi
}}
if [ "${{funcstack[1]}}" = _atomo ]; then _atomo "$@"; else compdef _atomo atomo; fi
"""


def main(words: Sequence[str]) -> int:
    """Prints the script of a shell."""
    parser = Parser(
        prog="atomo completion",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=[*SCRIPTS], metavar="SHELL", help=", ".join(SCRIPTS))
    sys.stdout.write(SCRIPTS[parser.parse_args(words).shell]())
    return 0


@cache
def options() -> dict[str, dict[str, argparse.Action]]:
    """Returns the options of each command by name."""
    return {
        command: {
            name: action
            for action in [
                *options_of(parser_of(command)),
                *([CONFIG] if command in CONFIGURED else []),
            ]
            for name in action.option_strings
        }
        for command in COMMANDS
    }


def values() -> dict[str, list[str]]:
    """Returns the values of the options that take one of some names."""
    known = {name: list_names() for name, list_names in NAMES.items()}
    every = [action for actions in options().values() for action in actions.values()]
    flags = {name for action in every if action.nargs == 0 for name in action.option_strings}
    truths = [action for action in every if action.const is True and action.nargs == "?"]
    names = {name for action in truths for name in action.option_strings} - flags
    return known | {name: ["yes", "no"] for name in sorted(names)}


def summary(text: str) -> str:
    """Returns the beginning of a help text, for a line of a menu.

    >>> summary("the learning rate; of SGD (default 0.1)")
    'the learning rate'
    """
    plain = " ".join(text.replace("%%", "%").split())
    return textwrap.shorten(plain.partition(" (")[0].partition("; ")[0], WIDTH, placeholder=" ...")


def bash_script() -> str:
    """Returns the script of bash."""
    return BASH.format(
        commands=" ".join(COMMANDS),
        values="\n".join(f'      {n}) known="{" ".join(v)}" ;;' for n, v in values().items()),
        options="\n".join(f'      {n}) known="{" ".join(o)}" ;;' for n, o in options().items()),
    )


def zsh_script() -> str:
    """Returns the script of zsh."""

    def listed(texts: Mapping[str, str]) -> str:
        lines = (f"{name}:{text}".replace("'", "'\\''") for name, text in texts.items())
        return " ".join(f"'{line}'" for line in lines)

    menus = {
        command: listed({name: summary(action.help or "") for name, action in actions.items()})
        for command, actions in options().items()
    }
    added = {name: f"compadd -- {' '.join(known)}" for name, known in values().items()}
    return ZSH.format(
        commands=listed(COMMANDS),
        values="\n".join(f"    {name}) {line}; return ;;" for name, line in added.items()),
        options="\n".join(f"      {name}) known=({menu}) ;;" for name, menu in menus.items()),
    )


def fish_script() -> str:
    """Returns the script of fish."""

    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [
        f"complete -c atomo -f -n __fish_use_subcommand -a {name} -d {quoted(text)}"
        for name, text in COMMANDS.items()
    ]
    known = values()
    for command, actions in options().items():
        for name, action in actions.items():
            takes = "-r" if action.nargs != 0 else ""
            if name in known:
                takes = f"-x -a {quoted(' '.join(known[name]))}"
            long, text = name.removeprefix("--"), quoted(summary(action.help or ""))
            given = f"-n '__fish_seen_subcommand_from {command}' -l {long} -d {text} {takes}"
            lines.append(f"complete -c atomo {given}".rstrip())
    return "\n".join([*lines, ""])


SCRIPTS: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
)
