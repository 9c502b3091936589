"""Output of `atomo explain --html`: a page with curves, the table, and four questions answered."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from atomo.cli.explanation.options import ExplainOptions
from atomo.cli.explanation.table import (
    error_text,
    links_text,
    method_text,
    subject,
    verdict,
)
from atomo.core.distribution import versions
from atomo.core.number_text import bytes_text
from atomo.core.quantities import speed_text
from atomo.errors import ConfigError
from atomo.planning import Costs, Scenario, predict
from atomo.planning.comparison import DENSE, Comparison, compression_pays
from atomo.report.charts import STYLES, Chart, Series, line_chart
from atomo.report.pages import Page, PageSection, PageTable, Sentence, page_html, write_page
from atomo.report.scales import SECONDS, ChartAxis, Unit
from atomo.report.verdicts import PREDICTED

__all__ = ["check_page", "explanation_html", "write_explanation"]

SPEEDS: Final = np.geomspace(1e7, 1e11, 25)  # bits a second
WORKERS: Final = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
BITS: Final = (Unit("bit/s"), Unit("Mbit/s", 1e6), Unit("Gbit/s", 1e9))
Methods = Sequence[tuple[Costs, str]]


def check_page(path: str) -> None:
    """Raises ConfigError if the folder of a page is missing, before the measurements."""
    if not Path(path).parent.is_dir():
        raise ConfigError(f"--html {path}: there is no folder {Path(path).parent}")


def write_explanation(
    scenario: Scenario,
    comparisons: Sequence[Comparison],
    methods: Methods,
    options: ExplainOptions,
) -> None:
    """Writes the page to the file of `--html`.

    Raises:
        CheckpointError: the file cannot be written.
    """
    path = Path(options.html)
    write_page(path.parent, path.name, explanation_html(scenario, comparisons, methods, options))


def explanation_html(
    scenario: Scenario,
    comparisons: Sequence[Comparison],
    methods: Methods,
    options: ExplainOptions,
) -> str:
    """Returns the page.

    Args:
        scenario: the workers and their links.
        comparisons: predicted steps, the fastest first.
        methods: codecs with the communicators of the curves.
        options: of the command.
    """
    lines = verdict(comparisons, options).splitlines()
    return page_html(
        Page(
            title=f"Does compression pay for {subject(options)}?",
            subtitle=f"{options.workers} workers, {links_text(scenario, options)}",
            verdict=[Sentence(line, PREDICTED) for line in lines],
            sections=[
                PageSection("Questions", tables=[questions(scenario, comparisons, options)]),
                PageSection("Curves", charts=[*curves(scenario, methods)]),
                PageSection("All predictions", tables=[predictions(comparisons)]),
            ],
            foot=f"Predicted by {versions()}",
        )
    )


def questions(
    scenario: Scenario, comparisons: Sequence[Comparison], options: ExplainOptions
) -> PageTable:
    """Returns the answers to four questions: link, model, ranks and accuracy."""
    rows = [
        ("How fast are the links?", link_answer(scenario, comparisons, options)),
        ("How large is the model?", model_answer(scenario, comparisons)),
        ("How many ranks?", " ".join(rank_answers(comparisons, options))),
        ("How much accuracy must be kept?", accuracy_answer(comparisons, options)),
    ]
    return PageTable("Four questions", ("question", "answer"), rows, is_text=True)


def link_answer(
    scenario: Scenario, comparisons: Sequence[Comparison], options: ExplainOptions
) -> str:
    """Answers which links a codec pays on."""
    codecs = [row for row in comparisons if row.code not in DENSE]
    links = links_text(scenario, options)
    if not codecs:
        return f"With {links}, only uncompressed gradients were predicted."
    best = max(codecs, key=lambda row: row.pays_below)
    pays = "pays" if compression_pays(comparisons) else "does not pay"
    bound = speed_text(best.pays_below)
    words = {"any": "on links of any speed", "never": "on no link"}.get(bound, f"below {bound}")
    return f"With {links}, compression {pays}. {best.code} over {best.communicator} pays {words}."


def model_answer(scenario: Scenario, comparisons: Sequence[Comparison]) -> str:
    """Answers how the passes of the model compare with its exchange."""
    size = sum(scenario.profile.sizes)
    dense = min((row for row in comparisons if row.code in DENSE), key=lambda row: row.step_s)
    share = scenario.compute_s / dense.step_s
    return (
        f"{size // 4:,} parameters, {bytes_text(size)} as float32. Passes take "
        f"{1e3 * scenario.compute_s:.3g} ms, {share:.0%} of the fastest uncompressed step: "
        f"a codec can save at most {1 - share:.0%}."
    )


def rank_answers(comparisons: Sequence[Comparison], options: ExplainOptions) -> Iterator[str]:
    """Yields the fastest method for other numbers of workers."""
    for number in comparisons[0].steps_s:
        best = min(comparisons, key=lambda row, number=number: row.steps_s[number])  # type: ignore[misc]
        yield (
            f"{number} workers: {best.code} with {method_text(best, options)}, "
            f"{1e3 * best.steps_s[number]:.3g} ms a step."
        )


def accuracy_answer(comparisons: Sequence[Comparison], options: ExplainOptions) -> str:
    """Answers what the fastest codec loses, and which method loses nothing."""
    dense = min((row for row in comparisons if row.code in DENSE), key=lambda row: row.step_s)
    dense_ms = f"{1e3 * dense.step_s:.3g} ms a step"
    exact = f"All of it: {dense.code} with {method_text(dense, options)}, {dense_ms}."
    known = [row for row in comparisons if row.error is not None and row.code not in DENSE]
    if not known:
        codec = next((row.code for row in comparisons if row.code not in DENSE), "topk")
        return (
            f"{exact} Errors are unknown here: --gradient FILE or --weights FILE measures them, "
            f"and `atomo inspect --code '{codec}'` shows one."
        )
    first = min(known, key=lambda row: row.step_s)
    least = min(known, key=lambda row: row.error or 0.0)
    return (
        f"{exact} The fastest codec, {first.code}, has a squared error of {error_text(first.error)}"
        f" of the gradient's; the least has {least.code}, {error_text(least.error)}."
    )


def curves(scenario: Scenario, methods: Methods) -> Iterator[Chart | None]:
    """Yields predicted steps over the bandwidth of the links and over the number of workers."""
    speeds = [(scenario.over(float(rate) / 8), float(rate)) for rate in SPEEDS]
    bandwidth = ChartAxis("bandwidth of each link", BITS, may_be_log=True)
    yield curve_chart("Step over bandwidth", bandwidth, speeds, methods)
    numbers = [(replace(scenario, workers=int(number)), float(number)) for number in WORKERS]
    axis = ChartAxis("workers", may_be_log=True)
    yield curve_chart("Step over workers", axis, numbers, methods)


def curve_chart(
    title: str,
    axis: ChartAxis,
    scenarios: Sequence[tuple[Scenario, float]],
    methods: Methods,
) -> Chart | None:
    """Draws a line of predicted steps for each method; uncompressed gradients are dashed."""
    x = np.array([value for _, value in scenarios])
    lines = []
    for place, (costs, name) in enumerate(methods):
        steps_s = [predict(scenario, costs, name).step_s for scenario, _ in scenarios]
        dense = costs.spec in DENSE
        label = f"{costs.spec}, {name}"
        lines.append(Series(label, x, np.array(steps_s), place % STYLES, predicted=dense))
    y = ChartAxis("time of a step", SECONDS, may_be_log=True)
    return line_chart(title, axis, y, lines, "Uncompressed gradients are dashed.")


def predictions(comparisons: Sequence[Comparison]) -> PageTable:
    """Returns the table of all predictions."""
    columns = (
        "codec", "communicator", "hosts", "ms", "link ms", "codec ms", "sent", "fusion", "error",
        "times bf16", "pays below", *(f"ms: {n}" for n in comparisons[0].steps_s),
    )  # fmt: skip
    rows = [
        (
            row.code, row.communicator, "dense inside" * row.hierarchical,
            f"{1e3 * row.step_s:.1f}", f"{1e3 * row.link_s:.1f}", f"{1e3 * row.codec_s:.1f}",
            bytes_text(row.sent_bytes),
            row.fusion, error_text(row.error), f"{row.to_base:.2f}", speed_text(row.pays_below),
            *(f"{1e3 * seconds:.0f}" for seconds in row.steps_s.values()),
        )
        for row in comparisons
    ]  # fmt: skip
    return PageTable("Predicted steps, the fastest first", columns, rows)
