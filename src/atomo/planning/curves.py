"""Plot of predicted steps over the bandwidth of the links."""

from collections.abc import Sequence
from typing import Final

from atomo.core.plotting import pyplot_for
from atomo.planning.comparison import DENSE
from atomo.planning.costs import Costs
from atomo.planning.prediction import Scenario, predict

__all__ = ["draw"]

FROM_BIT, TO_BIT = 1e7, 1e11  # bits a second
POINTS: Final = 41


def draw(path: str, scenario: Scenario, methods: Sequence[tuple[Costs, str]]) -> None:
    """Writes a curve for each codec and its communicator.

    Args:
        path: the picture.
        scenario: the workers; only the latency of their links counts.
        methods: costs, and the communicator of each.

    Raises:
        ConfigError: matplotlib is not installed, or it writes no such files.
    """
    pyplot = pyplot_for(path)
    figure, axes = pyplot.subplots(figsize=(8, 5))
    ratio = (TO_BIT / FROM_BIT) ** (1 / (POINTS - 1))
    bits = [FROM_BIT * ratio**point for point in range(POINTS)]
    for costs, name in methods:
        steps = [1e3 * predict(scenario.over(rate / 8), costs, name).step_s for rate in bits]
        dense = name == "Allreduce" and costs.spec in DENSE
        axes.plot(bits, steps, label=f"{costs.spec}, {name}", linestyle="--" if dense else "-")
    axes.axhline(1e3 * scenario.compute_s, color="grey", linewidth=0.8, label="passes alone")
    axes.axvline(8 * scenario.link.bytes_per_s, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="bandwidth of each link, bit/s", ylabel="ms a step")
    axes.set_title(f"Predicted for {scenario.workers} workers")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
