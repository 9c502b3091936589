"""Output of `atomo explain`: a table, a verdict, or a JSON document."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from atomo.cli.explanation.options import ExplainOptions, skipped_communicators
from atomo.core.number_text import bytes_text
from atomo.core.quantities import speed_text
from atomo.planning import Scenario
from atomo.planning.comparison import DENSE, OTHER_SIZES, Comparison, compression_pays
from atomo.planning.local_rounds import LocalRound

__all__ = ["document", "links_text", "table", "verdict"]


def document(
    options: ExplainOptions,
    scenario: Scenario,
    comparisons: Sequence[Comparison],
    rounds: Sequence[LocalRound] = (),
) -> dict[str, Any]:
    """Returns all results as a JSON document. A codec that pays on links of any speed has the bound
    null.
    """
    rows = [asdict(comparison) for comparison in comparisons]
    for row in rows:
        row["pays_below"] = None if math.isinf(row["pays_below"]) else row["pays_below"]
    return {
        "options": asdict(options),
        "parameters": sum(scenario.profile.sizes) // 4,
        "compute_s": scenario.compute_s,
        "compress": compression_pays(comparisons),
        "left_out": skipped_communicators(options),
        "steps": rows,
        "rounds": [asdict(row) for row in rounds],
    }


def table(scenario: Scenario, comparisons: Sequence[Comparison], options: ExplainOptions) -> Table:
    """Returns a table with a row for each codec and communicator, the fastest first."""
    entries = sum(scenario.profile.sizes) // 4
    title = (
        f"{subject(options)}, {entries:,} parameters: a step's passes take "
        f"{1e3 * scenario.compute_s:.0f} ms; {options.workers} workers, "
        f"{links_text(scenario, options)}"
    )
    inside = ["hosts"] if options.per_host > 1 else []
    error = ["error"] if any(comparison.error is not None for comparison in comparisons) else []
    out = Table(title=title)
    for column in (
        "--code", "--comm-type", *inside, "ms", "link", "codec", "sent", "--fusion",
        *error, "to bf16", "pays below", *(f"ms: {n}" for n in OTHER_SIZES),
    ):  # fmt: skip
        out.add_column(column, justify="left" if column.startswith("--") else "right")
    for comparison in comparisons:
        out.add_row(
            comparison.code,
            comparison.communicator,
            *([f"of {options.per_host}" * comparison.hierarchical] if inside else []),
            f"{1e3 * comparison.step_s:.1f}",
            f"{1e3 * comparison.link_s:.1f}",
            f"{1e3 * comparison.codec_s:.1f}",
            bytes_text(comparison.sent_bytes),
            comparison.fusion,
            *([error_text(comparison.error)] if error else []),
            f"{comparison.to_base:.2f}x",
            speed_text(comparison.pays_below),
            *(f"{1e3 * seconds_:.0f}" for seconds_ in comparison.steps_s.values()),
        )
    return out


def links_text(scenario: Scenario, options: ExplainOptions) -> str:
    """Returns the links in words."""
    if scenario.measured:
        return f"links as in {options.probe}"
    links = f"{options.bandwidth}, {options.latency}"
    return f"{options.per_host} a host, hosts over {links}" if options.per_host > 1 else links


def subject(options: ExplainOptions) -> str:
    """Returns the name of the explained run: a file, or a network."""
    if file := options.gradient or (options.weights if options.compute else ""):
        return file
    return f"{options.network} with {options.weights}" if options.weights else options.network


def error_text(error: float | None) -> str:
    """Formats a relative error; an unknown error is empty."""
    return "" if error is None else f"{error:.2g}"


def method_text(comparison: Comparison, options: ExplainOptions) -> str:
    """Returns the options of `atomo train` for the communicator of a comparison."""
    inside = f"--hierarchical {options.per_host} " if comparison.hierarchical else ""
    return f"{inside}--comm-type {comparison.communicator}"


def verdict(comparisons: Sequence[Comparison], options: ExplainOptions) -> str:
    """Returns the recommendation in one or two sentences."""
    first = comparisons[0]
    choice = f"{method_text(first, options)} --code '{first.code}' --fusion {first.fusion}"
    if not compression_pays(comparisons):
        dense = next(comparison for comparison in comparisons if comparison.code in DENSE)
        plain = f"{method_text(dense, options)} --code {dense.code}"
        return f"Do not compress: no codec is 2 % faster than {plain} --fusion {dense.fusion}.\n"
    speed_bound = speed_text(first.pays_below)
    gain = f"{first.to_base:.2f} times as fast as bf16 over Allreduce"
    figures = "these figures" if first.error is None else "these times"
    bound = "on links of any speed" if speed_bound == "any" else f"on links below {speed_bound}"
    return (
        f"Fastest: {choice}, {gain}; it pays {bound}.\n"
        f"The loss of accuracy is not in {figures}: `atomo inspect --code '{first.code}'` shows "
        "the error of one encoding, and a training run shows the accuracy.\n"
    )
