"""The settings of a run as a command line and its `--config` files give them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from atomo.arguments import Parser, parse
from atomo.config import Settings
from atomo.launch.slurm import tasks
from atomo.settings_file import name_of, read_settings
from atomo.tasks import chosen

__all__ = ["CONFIG_HELP", "Given", "given"]

CONFIG_HELP = """\
--config FILE.toml ...: settings from files; later ones win, and options win over all."""


@final
@dataclass(frozen=True)
class Given:
    """What a user asked for."""

    settings: Settings
    name: str
    """Which files it came from, `[cifar.resnet20]+[dgc.wm5]`; empty: from none."""


def given(words: Sequence[str], command: str, description: str) -> Given:
    """The settings that a command line describes, over those of its files.

    Raises:
        ConfigError: an option or a file is not what it should be.
    """
    own = Parser(prog=f"atomo {command}", add_help=False, allow_abbrev=False)
    own.add_argument("--config", nargs="+", action="extend", type=Path, default=[])
    known, options = own.parse_known_args(words)
    files = read_settings(known.config)

    def build(**options: Any) -> Settings:
        told = {**files, **options}
        if told.get("slurm") and "n" not in told:  # who asks for tasks wants them all
            told["n"] = tasks() - told.get("spares", 0)
        return chosen(**told)

    settings = parse(Settings, options, command, f"{description}\n\n{CONFIG_HELP}", build)
    return Given(settings, name_of(known.config))
