"""Pages of the reference about commands: their options, as `--help` has them."""

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import Final

from atomo.cli import COMMANDS
from atomo.cli.parsers import options_of, parser_of
from atomo_cluster.ec2.cli import COMMANDS as CLUSTER_COMMANDS
from atomo_cluster.ec2.cli import parser as cluster_parser
from atomo_cluster.ec2.commands import module_of

__all__ = ["cluster_page", "commands_page", "options_table"]

DEFAULT: Final = re.compile(r" ?\((?:default (.*)|(required))\)$", re.DOTALL)
SHARED: Final = {"--json", "--endpoint-url"}
"""Options of every command for clusters, beside the settings."""
COMMANDS_INTRO: Final = """\
# Commands and options

`atomo COMMAND --help` prints the same. In a clone without an installation, `.venv/bin/atomo` is
the command; `bash run_pytorch.sh`, `bash evaluate_pytorch.sh` and `bash data_prepare.sh` have the
options of `atomo train`, `atomo evaluate` and `atomo prepare`. Truth values are `yes` or `no`;
the option alone means yes. `--config a.toml b.toml` reads settings from files: later files win,
and options win over all.
"""
CLUSTER_INTRO: Final = """\
# Commands for EC2

`python tools/pytorch_ec2.py COMMAND --help` prints the same, and so does `pytorch_ec2.py` where
the distribution `atomo-cluster` is installed. Every command takes `--json` (one JSON document, for
scripts), `--endpoint-url` (another AWS) and the [settings of a cluster](#settings-of-a-cluster),
which are the keys of `cluster.yaml`. The guide is [a cluster on EC2](../cluster-ec2.md); [exit
codes](exit-codes.md) have a page of their own.
"""


def cell(text: str) -> str:
    """Returns a text as one cell of a table."""
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|")


def row(action: argparse.Action) -> str:
    """Returns an option or an argument as a row: its name, its default, and its meaning."""
    text = cell(action.help or "")
    found = DEFAULT.search(text)
    default = found[1] if found else ""
    meaning = text[: found.start()] if found and found[1] else text
    name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
    return f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |"


def options_table(actions: Iterable[argparse.Action]) -> str:
    """Returns the options of a command as a table; empty without any."""
    rows = [row(action) for action in actions]
    return (
        "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows, ""])
        if rows
        else ""
    )


def paragraphs(text: str) -> str:
    """Returns the description of a command as Markdown: indented lines are its examples."""
    parts = []
    for part in text.strip("\n").split("\n\n"):
        is_code = all(line.startswith("  ") for line in part.splitlines())
        parts.append(f"```\n{part}\n```" if is_code else part)
    return "\n\n".join(parts)


def described(names: Iterable[str]) -> Iterator[str]:
    """Yields a section for each command; one that shares the options of `train` says so."""
    train = options_table(options_of(parser_of("train")))
    for name in names:
        parser = parser_of(name)
        table = options_table(options_of(parser))
        if name != "train" and table == train:
            table = "Its options are those of [`atomo train`](#atomo-train).\n"
        yield f"## `atomo {name}`\n\n{paragraphs(parser.description or COMMANDS[name])}\n\n{table}"


def commands_page() -> str:
    """Returns the page of all commands of `atomo`."""
    listed = [f"- [`atomo {name}`](#atomo-{name}): {text}" for name, text in COMMANDS.items()]
    return "\n".join([COMMANDS_INTRO, *listed, "", *described(COMMANDS)])


def cluster_section(name: str) -> str:
    """Returns the section of a command for clusters: its examples, and its own options."""
    module = module_of(name)
    built = argparse.ArgumentParser(add_help=False)
    module.arguments(built)
    parts = [f"## `{name}`", f"{CLUSTER_COMMANDS[name][:1].upper()}{CLUSTER_COMMANDS[name][1:]}."]
    parts += [paragraphs(module.HELP)]
    return "\n\n".join([*parts, options_table(options_of(built))]).rstrip() + "\n"


def settings_of_clusters() -> list[argparse.Action]:
    """Returns the options that every command for clusters has: the settings."""
    name = next(iter(CLUSTER_COMMANDS))
    built = argparse.ArgumentParser(add_help=False)
    module_of(name).arguments(built)
    own = SHARED | {word for action in built._actions for word in action.option_strings}
    return [action for action in options_of(cluster_parser(name, module_of(name)))
            if action.option_strings and action.option_strings[-1] not in own]  # fmt: skip


def cluster_page() -> str:
    """Returns the page of all commands of `pytorch_ec2.py`."""
    table = options_table(settings_of_clusters())
    sections = [cluster_section(name) for name in CLUSTER_COMMANDS]
    return "\n".join([CLUSTER_INTRO, *sections, "## Settings of a cluster", "", table])
