"""Sections of the page of one run: its plan, its settings, and how to repeat it."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from atomo.config.comm_types import PARAMETER_SERVER, stored_settings
from atomo.config.file import SETTINGS_FILE
from atomo.config.settings import Settings
from atomo.core.arguments import flag
from atomo.report.pages import PageSection, PageTable, Sentence
from atomo.report.records import RunRecords
from atomo.report.verdicts import PREDICTED

__all__ = ["changed_settings", "setup_sections"]

EXPLAINED: Final = ("network", "dataset", "batch_size")


def setup_sections(run: RunRecords) -> list[PageSection]:
    """Returns the sections about the plan, the settings and the machine."""
    return [plan_section(run), settings_section(run), repeat_section(run)]


def plan_section(run: RunRecords) -> PageSection:
    """Returns the plan that the run measured, or the command that predicts one."""
    texts = [part.text for part in (run.codecs, run.messages) if part is not None]
    remark = Sentence("Codecs were given, and not measured; this command predicts others:")
    if texts:
        return PageSection("Choice of codecs", [Sentence(text, PREDICTED) for text in texts])
    return PageSection("Choice of codecs", [remark], commands=[explain_command(run)])


def explain_command(run: RunRecords) -> str:
    """Returns the command that predicts steps of such a run with other codecs."""
    words = ["atomo", "explain"]
    for name in EXPLAINED:
        if name in run.settings:
            words += [flag(name), str(run.settings[name])]
    ranks = run.settings.get("n")
    if type(ranks) is int and ranks > 0:
        has_master = run.setting("comm_type", PARAMETER_SERVER) in (PARAMETER_SERVER, "Bcast")
        words += ["--workers", str(ranks - has_master)]
    return shlex.join(words)


def settings_section(run: RunRecords) -> PageSection:
    """Returns the settings, those that are no defaults first."""
    if not run.settings:
        return PageSection("Settings", [Sentence(f"{SETTINGS_FILE} is missing.")])
    changed = changed_settings(run.settings)
    columns = ("setting", "value")
    tables = [
        PageTable("Settings other than the defaults", columns, rows_of(changed), is_text=True),
        PageTable("All settings", columns, rows_of(run.settings), is_folded=True, is_text=True),
    ]
    return PageSection("Settings", tables=tables)


def changed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are not the defaults of this version."""
    defaults = stored_settings(asdict(Settings()))
    return {name: value for name, value in settings.items() if defaults.get(name) != value}


def rows_of(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns settings as rows."""
    return [(name, str(value)) for name, value in settings.items()]


def repeat_section(run: RunRecords) -> PageSection:
    """Returns the command that repeats the run, versions and machine."""
    launches = run.events_of("Launched")
    commands = [f"atomo train --config {shlex.quote(str(run.folder / SETTINGS_FILE))}"]
    sentences = [Sentence("This command repeats the run in a new folder:")]
    if not launches:
        remark = "Versions and machine are unknown: events.jsonl has no start of this run."
        sentences.append(Sentence(remark))
        return PageSection("Repeat", sentences, commands=commands)
    launch = launches[-1]
    commands.append(str(launch.get("command", "")))
    names = ("versions", "machine", "hosts")
    facts = [(name, str(launch.get(name, ""))) for name in names if launch.get(name)]
    return PageSection("Repeat", sentences, facts, commands=commands)
