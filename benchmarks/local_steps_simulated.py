"""Steps of 8, 64 and 1024 workers over several links, computed from costs measured here.

    python benchmarks/local_steps_simulated.py [--network ResNet50 --compute 100ms]

Nothing is sent. The costs of codecs are measured on this machine, for gradients of the shapes of a
network; passes take the given time. The model is that of `atomo explain --local-steps`. A cell has
the steps in a round from which on 95 % of the time is computing, and the mean milliseconds of a
step without local steps and with 30 in a round.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch

from atomo.cli.explanation.inputs import passes_of_length
from atomo.codecs import make_codec
from atomo.core.quantities import bits_per_second, seconds
from atomo.planning import Costs, HostModel, Link, Scenario, measure_costs
from atomo.planning.local_rounds import predict_round
from atomo.workloads.models import build_model

WORKERS: Final = (8, 64, 1024)
LINKS: Final = ("100mbit", "1gbit", "10gbit")
METHODS: Final = (
    ("bf16", "Allreduce"),
    ("svd(rank=4)", "PowerSGD"),
    ("lloydmax", "Allgather"),
    ("tiletopk(ratio=0.03, values=lloydmax)", "Allgather"),
)
EVERY: Final = 30


def main() -> None:
    """Measures the costs of the codecs, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="ResNet50")
    parser.add_argument("--compute", default="100ms", help="of a forward and a backward pass")
    parser.add_argument("--latency", default="1ms", help="one way")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenario = scenario_of(options)
    costs = [
        (measure_costs(make_codec(spec), name, scenario.profile.gradient, 3), name)
        for spec, name in METHODS
    ]
    heads = [f"`{cost.spec}`, {name}" for cost, name in costs]
    print(f"| workers | link | {' | '.join(heads)} |\n|{' --- |' * (2 + len(heads))}")
    for line in lines(scenario, costs, seconds(options.latency, "--latency")):
        print(line, flush=True)


def scenario_of(options: argparse.Namespace) -> Scenario:
    """Returns workers with random gradients of the shapes of the network."""
    generator = torch.Generator().manual_seed(1)
    model = build_model(options.network, (3, 224, 224), 1000)
    gradient = {
        name: torch.randn(parameter.shape, generator=generator)
        for name, parameter in model.named_parameters()
    }
    profile = passes_of_length(gradient, seconds(options.compute, "--compute"))
    return Scenario(profile, 1, Link(1.0, 0.0), HostModel())


def lines(scenario: Scenario, costs: list[tuple[Costs, str]], latency_s: float) -> Iterator[str]:
    """Yields a line for each number of workers and link."""
    for workers in WORKERS:
        for rate in LINKS:
            link = Link(bits_per_second(rate, "LINKS") / 8, latency_s)
            chosen = replace(scenario, workers=workers, link=link)
            cells = (cell(chosen, cost, name) for cost, name in costs)
            yield f"| {workers} | {rate} | {' | '.join(cells)} |"


def cell(scenario: Scenario, costs: Costs, name: str) -> str:
    """Returns the needed steps in a round, and milliseconds of a step."""
    plain, local = (predict_round(scenario, costs, name, every) for every in (1, EVERY))
    return f"{local.needed}: {1e3 * plain.step_s:.0f}, {1e3 * local.step_s:.0f}"


if __name__ == "__main__":
    main()
