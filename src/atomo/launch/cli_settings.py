"""The settings of a run as a command line and its `--config` files give them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from atomo.config.effect_tables import Effect, report_idle, without_effect
from atomo.config.effects import TRAIN_EFFECTS
from atomo.config.file import config_name, read_settings
from atomo.config.resolve_codec import check_code
from atomo.config.settings import Settings
from atomo.core.arguments import Parser, parse_arguments
from atomo.core.published import NOTES
from atomo.launch.config_files import config_file
from atomo.launch.jobs.slurm import count_tasks
from atomo.workloads import choose_workload

__all__ = ["CONFIG_HELP", "CliSettings", "parse_cli_settings"]

CONFIG_HELP = """\
--config FILE.toml ...: settings from files; later ones win, and options win over all.
The published ones, configs/..., are found from every folder."""


@final
@dataclass(frozen=True)
class CliSettings:
    """Settings as the user gave them: files and options."""

    settings: Settings
    name: str
    """Names of its files, such as `[cifar.resnet20]+[dgc.wm5]`; empty: no files."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the command line itself, by field of Settings."""

    def idle(
        self, table: Mapping[str, Effect[Settings]] = TRAIN_EFFECTS
    ) -> dict[str, Effect[Settings]]:
        """Returns the options of the command line that have no effect.

        Raises:
            ConfigError: settings contradict each other.
        """
        self.settings.resolved()  # its errors are clearer than a report of options without effect
        return without_effect(self.settings, self.options, table)

    def check_codes(self) -> None:
        """Raises ConfigError for a --code of the command line that serves in no step."""
        if "code" in self.options:
            check_code(self.options["code"], self.settings.code_schedule)

    def check(
        self, say: Callable[[str], object], table: Mapping[str, Effect[Settings]] = TRAIN_EFFECTS
    ) -> None:
        """Says which options of the command line have no effect, and what a name means here.

        Raises:
            ConfigError: one of them was meant to have one, or settings contradict each other.
        """
        self.check_codes()
        if note := NOTES.get(self.settings.network):
            say(note)
        report_idle(self.idle(table), self.options, say)


def parse_cli_settings(words: Sequence[str], command: str, description: str) -> CliSettings:
    """Returns the settings that a command line describes, over those of its files.

    Raises:
        ConfigError: an option or a file is not what it should be.
    """
    own = Parser(prog=f"atomo {command}", add_help=False, allow_abbrev=False)
    own.add_argument("--config", nargs="+", action="extend", type=Path, default=[])
    parsed, options = own.parse_known_args(words)
    files = read_settings([config_file(path) for path in parsed.config])

    given_options: dict[str, Any] = {}

    def build(**options: Any) -> Settings:
        given_options.update(options)
        values = {**files, **options}
        if values.get("slurm") and "n" not in values:  # who asks for tasks wants them all
            values["n"] = count_tasks() - values.get("spares", 0)
        return choose_workload(**values)

    settings = parse_arguments(Settings, options, command, f"{description}\n\n{CONFIG_HELP}", build)
    return CliSettings(settings, config_name(parsed.config), given_options)
