"""Output of `atomo explain --local-steps`: a table of rounds, and the price in loss."""

from collections.abc import Sequence

from rich.table import Table

from atomo.cli.explanation.options import ExplainOptions
from atomo.core.number_text import bytes_text
from atomo.planning import Scenario
from atomo.planning.comparison import DENSE
from atomo.planning.local_price import prices_near
from atomo.planning.local_rounds import SHARE, LocalRound

__all__ = ["rounds_table", "rounds_verdict"]


def rounds_table(
    scenario: Scenario, rounds: Sequence[LocalRound], options: ExplainOptions, links: str
) -> Table:
    """Returns a table with a row for each codec and communicator.

    Args:
        scenario: the workers.
        rounds: the predictions, in the order of rows.
        options: those of the command.
        links: the links in words.
    """
    inside = ["hosts"] if options.per_host > 1 else []
    out = Table(
        title=f"Local steps: a step's passes take {1e3 * scenario.compute_s:.0f} ms; "
        f"{options.workers} workers, {links}"
    )
    for column in (
        "--code", "--comm-type", *inside, f"{SHARE:.0%} from", "--local-steps", "ms", "computing",
        "exchange ms", "sent a step", "peak",
    ):  # fmt: skip
        out.add_column(column, justify="left" if column.startswith("--c") else "right")
    for row in rounds:
        out.add_row(
            row.code,
            row.communicator,
            *([f"of {options.per_host}" * row.hierarchical] if inside else []),
            str(row.needed),
            str(row.every),
            f"{1e3 * row.step_s:.1f}",
            f"{row.computing:.0%}",
            f"{1e3 * row.exchange_s:.1f}",
            bytes_text(row.sent_bytes),
            bytes_text(row.peak_bytes),
        )
    return out


def rounds_verdict(scenario: Scenario, rounds: Sequence[LocalRound]) -> str:
    """Returns the shortest rounds that leave `SHARE` of the time to computing, and the price."""
    # Dense gradients lose nothing: a codec must save local steps.
    best = min(rounds, key=lambda row: (row.needed, row.code not in DENSE, row.step_s))
    choice = f"--comm-type {best.communicator} --code '{best.code}'"
    if best.needed == 1:
        return (
            f"No local steps are needed: with {choice}, {SHARE:.0%} of the time is computing with "
            "an exchange after each step.\n"
        )
    parameters = sum(scenario.profile.sizes) // 4
    lines = [
        f"Shortest rounds: {choice} --local-steps {best.needed}; {SHARE:.0%} of the time is then "
        "computing. The outer optimizer is not in the times, nor what a codec loses.",
        "Local steps cost accuracy at equal samples, and small models pay more. Loss above that of "
        "data-parallel training:",
        *(f"  {price}" for price in prices_near(parameters, scenario.workers, best.needed)),
    ]
    return "\n".join(lines) + "\n"
