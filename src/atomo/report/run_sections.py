"""Sections of the page of one run: learning, rounds, faults, checkpoints."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

import numpy as np

from atomo.core.number_text import bytes_text
from atomo.report.charts import Chart, Series, line_chart
from atomo.report.columns import number
from atomo.report.cost_sections import STEP, bytes_section, time_section
from atomo.report.curves import loss_charts, metric_charts
from atomo.report.pages import PageSection, PageTable, Sentence
from atomo.report.records import RunRecords
from atomo.report.scales import ChartAxis
from atomo.report.verdicts import MEASURED

__all__ = ["run_sections"]

MOST_ROWS: Final = 100  # of a table; the newest are shown
SHOWN_KINDS: Final = (
    "Started", "Caution", "Storage", "ProbedAgain", "Note", "Ended", "Exited"
)  # fmt: skip


def run_sections(run: RunRecords) -> list[PageSection]:
    """Returns the sections about the course of a run, in the order of the page."""
    sections = [
        learning_section(run),
        time_section(run),
        bytes_section(run),
        rounds_section(run),
        faults_section(run),
        checkpoints_section(run),
    ]
    return [section for section in sections if section is not None]


def learning_section(run: RunRecords) -> PageSection:
    """Returns loss and metric over seconds, steps and bytes."""
    charts = [*loss_charts([run]), *metric_charts([run])]
    finite = np.isfinite(run.steps["loss"])
    sentences = []
    if not finite.all():
        first = int(run.steps["step"][np.argmin(finite)])
        count = int((~finite).sum())
        text = f"The loss of {count:,} steps is no finite number; step {first:,} is the first."
        sentences.append(Sentence(text, MEASURED))
    if not run.evaluations:
        why = "No checkpoint was evaluated, so there is no test metric: `atomo evaluate` does it."
        sentences.append(Sentence(why))
    return PageSection("Learning", sentences, charts=charts)


def rounds_section(run: RunRecords) -> PageSection | None:
    """Returns the rounds of local steps; None if every step had an exchange."""
    ended = np.nonzero(run.steps["round"] > 0)[0]
    if not len(ended):
        return None
    sizes = run.steps["round_steps"][ended]
    facts = [
        ("rounds", f"{len(ended):,}"),
        ("steps in a round", f"{np.nanmin(sizes):.0f} to {np.nanmax(sizes):.0f}"),
        ("sent in a round", bytes_text(run.steps.total("up_bytes") / len(ended))),
    ]
    text = "Ranks take the steps of a round alone, and then exchange their differences."
    return PageSection("Rounds of local steps", [Sentence(text)], facts, round_charts(run))


def round_charts(run: RunRecords) -> list[Chart | None]:
    """Draws the outer optimizer over the rounds."""
    ended = run.steps["round"] > 0
    numbers, axis = run.steps["round"][ended], ChartAxis("round")
    rate = Series("outer rate", numbers, run.steps["outer_rate"][ended])
    correlation = Series("correlation", numbers, run.steps["correlation"][ended], dots=True)
    return [
        line_chart("Effective rate of the outer optimizer", axis, ChartAxis("outer rate"), [rate]),
        line_chart(
            "Correlation of a difference with that of the round before",
            axis,
            ChartAxis("correlation"),
            [correlation],
        ),
    ]


def faults_section(run: RunRecords) -> PageSection:
    """Returns refused frames, the account of samples, failed writes and messages."""
    counts = ("asked", "used", "late", "lost", "refused")
    totals = {name: run.steps.total(f"images_{name}") for name in counts}
    facts = [(f"samples {name}", f"{total:,.0f}") for name, total in totals.items()]
    pending = run.steps.filled("images_under_way")[-1:]
    facts.append(("samples under way", f"{pending.sum():,.0f}"))
    tables = [table for table in (refused_frames(run), messages(run)) if table.rows]
    sentences = []
    if not any(totals[name] for name in ("late", "lost", "refused")):
        sentences.append(Sentence("Nothing was late, lost or refused.", MEASURED))
    if failures := max(run.steps.filled("storage_failures").tolist(), default=0.0):
        sentences.append(Sentence(f"{failures:.0f} attempts to write files failed.", MEASURED))
    if not run.events:
        sentences.append(Sentence("No events.jsonl: messages of this run were not recorded."))
    return PageSection("Faults and samples", sentences, facts, [workers_chart(run)], tables)


def workers_chart(run: RunRecords) -> Chart | None:
    """Draws the gradients that counted in each step; None if all steps had equally many."""
    workers = run.steps["workers"]
    if len(np.unique(workers[np.isfinite(workers)])) < 2:
        return None
    line = Series("gradients", run.steps["step"], workers)
    return line_chart("Gradients that counted in a step", STEP, ChartAxis("gradients"), [line])


def refused_frames(run: RunRecords) -> PageTable:
    """Returns refused frames by worker and fault."""
    refusals = sorted(run.steps.refusals.items())
    rows = [(f"worker {rank}", fault, f"{count:,}") for (rank, fault), count in refusals]
    return PageTable("Refused frames", ("worker", "fault", "frames"), rows[:MOST_ROWS])


def messages(run: RunRecords) -> PageTable:
    """Returns cautions and other messages with their times."""
    events = [event for event in run.events if event.get("event") in SHOWN_KINDS]
    rows = [(time_text(event.get("at")), message_text(event)) for event in events[-MOST_ROWS:]]
    return PageTable("Messages", ("time (UTC)", "message"), rows, len(rows) > 10, is_text=True)


def message_text(event: Mapping[str, Any]) -> str:
    """Returns an event in words."""
    match event:
        case {"event": "Started", "first_step": first, "last_step": last}:
            return f"steps {first} to {last} begin"
        case {"event": "Ended", "step": step, "reason": reason}:
            return f"ended after step {step}: {reason}"
        case {"event": "Exited", "exit_code": code}:
            return f"exit code {code}"
        case {"event": kind}:
            return str(event.get("text") or kind)
    return ""


def time_text(at: object) -> str:
    """Returns a time of the clock; empty if it is none."""
    try:
        return datetime.fromtimestamp(number(at), timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


def checkpoints_section(run: RunRecords) -> PageSection:
    """Returns the checkpoints in the folder and the results of the evaluator."""
    sizes = {saved.step: saved.size for saved in run.checkpoints}
    evaluations = {int(record["step"]): record for record in run.evaluations}
    steps, names = sorted({*sizes, *evaluations}), metric_names(run.evaluations)
    if not steps:
        return PageSection("Checkpoints", [Sentence("The folder has no checkpoints.")])
    rows = [
        (
            f"{step:,}",
            bytes_text(sizes[step]) if step in sizes else "deleted",
            *(value_text(evaluations.get(step, {}).get(name)) for name in names),
        )
        for step in steps[-MOST_ROWS:]
    ]
    table = PageTable("Checkpoints and evaluations", ("step", "size", *names), rows)
    left_out = len(steps) - len(rows)
    sentences = [Sentence(f"{left_out:,} earlier ones are not shown.")] if left_out else []
    return PageSection("Checkpoints", sentences, tables=[table])


def metric_names(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the values of evaluations, at most eight."""
    names = dict.fromkeys(name for record in evaluations for name in record if name != "step")
    return [str(name)[:40] for name in names][:8]


def value_text(value: object) -> str:
    """Returns a result; empty without one."""
    return f"{value:.4g}" if type(value) in (int, float) else ""
