"""The page of one run, and the file of it in the run's folder."""

from pathlib import Path
from typing import Final

from atomo.core.distribution import versions
from atomo.report.pages import Page, PageSection, Sentence, page_html, write_page
from atomo.report.records import RunRecords, read_run
from atomo.report.run_sections import run_sections
from atomo.report.setup_sections import setup_sections
from atomo.report.verdicts import run_verdict

__all__ = ["REPORT_FILE", "run_html", "write_report"]

REPORT_FILE: Final = "report.html"


def write_report(folder: Path) -> Path:
    """Writes the page of a run into its folder, and returns its path.

    Raises:
        ConfigError: there is no such folder.
        CheckpointError: the page cannot be written.
    """
    return write_page(folder, REPORT_FILE, run_html(folder))


def run_html(folder: Path, refresh_s: int = 0) -> str:
    """Returns the page of a run.

    Raises:
        ConfigError: there is no such folder.
    """
    run = read_run(folder)
    sections = [*run_sections(run), *setup_sections(run)] if len(run.steps) else setup_sections(run)
    if run.remarks:
        sections.append(PageSection("Files", [Sentence(remark) for remark in run.remarks]))
    return page_html(
        Page(
            title=run.name,
            subtitle=subtitle(run),
            verdict=run_verdict(run),
            sections=sections,
            foot=f"Written by {versions()} from {run.folder}",
            refresh_s=refresh_s,
        )
    )


def subtitle(run: RunRecords) -> str:
    """Names network, data, codec and workers."""
    if not run.settings:
        return "settings unknown"
    network, data, code = map(run.setting, ("network", "dataset", "code"))
    memory, ranks = run.setting("memory"), run.setting("n")
    way = run.setting("comm_type").replace("Bcast", "ParameterServer")
    return f"{network} on {data}, codec {code}, memory {memory}, {way}, {ranks} ranks"
