"""Time to plan the grouping of gradients into messages, and distance of the plans from a bound.

    python benchmarks/planning.py

The first rows plan the 161 gradients of ResNet50, with passes and codecs measured on this machine,
for 16 workers on links of 1 Gbit/s. The other rows plan random flows: encoding, sending and
decoding take random shares of the time, with low or high costs for each message, so that more
groupings are close to the optimum than with real codecs. Milliseconds are processor time, without
compilation. `off` is the relative distance of the time of a plan from a lower bound of all
partitions.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

import numpy as np

from atomo.cli.explanation.inputs import profile_of
from atomo.cli.explanation.options import ExplainOptions
from atomo.codecs import make_codec
from atomo.fusion.flow import Flow, Times
from atomo.fusion.partition import best_partition, bound
from atomo.planning import Scenario, measure_costs
from atomo.planning.prediction import flow_of

CODES: Final = ("sgd", "topk(ratio=0.01)", "qsgd", "svd(rank=3)")
SLOWING: Final = (0.0, 0.3, 1.0)
SCALES: Final = (0.3, 0.7, 1.0, 3.0)  # of costs, relative to the mean time between two gradients
MESSAGES: Final = (0.05, 0.5, 5.0)  # of one message, in the same unit


def main() -> None:
    """Measures the planning, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="ResNet50")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tensors", type=int, nargs="*", default=(161, 600))
    options = parser.parse_args()
    best_partition(drawn(0, 3, 1.0, 1.0, 1.0))  # compiles the planner
    print("| flow | tensors | plans | median, ms | slowest, ms | off, median | off, most |")
    print("|---|---|---|---|---|---|---|")
    for code, flow in measured(options.network, options.image_size):
        show(f"{options.network}, {code}", [flow])
    for tensors, slowing in product(options.tensors, SLOWING):
        seeds = range(options.seeds)
        cases = product(seeds, SCALES, MESSAGES)
        flows = (drawn(seed, tensors, slowing, *scales) for seed, *scales in cases)
        show(f"drawn, slowing {slowing:g}", flows)


def measured(network: str, image_size: int) -> Iterator[tuple[str, Flow]]:
    """Yields the flows of a network's gradients, by codec."""
    options = ExplainOptions(network=network, image_size=image_size, batch_size=4, workers=16)
    profile = profile_of(options)
    scenario = Scenario(profile, options.workers, options.link, options.host_model)
    for code in CODES:
        costs = measure_costs(make_codec(code), "Allgather", profile.gradient, repetitions=1)
        yield code, flow_of(scenario, costs, "Allgather")


def drawn(seed: int, tensors: int, slowing: float, scale: float, message: float) -> Flow:
    """Returns a random flow, limited by encoding, sending or decoding."""
    draws = np.random.default_rng(seed)
    sizes = draws.exponential(scale, (tensors, 1)) * draws.exponential(1, (tensors, 3))
    ready = np.cumsum(draws.exponential(1, tensors))
    beside = Times(*draws.exponential(message, 3).tolist())
    times = tuple(Times(*row) for row in sizes.tolist())
    return Flow(tuple(ready.tolist()), times, beside, slowing)


def show(name: str, flows: Iterable[Flow]) -> None:
    """Plans the flows, and prints a row."""
    times, off = [], []
    for flow in flows:
        started = time.thread_time()
        cuts = best_partition(flow)
        times.append(1e3 * (time.thread_time() - started))
        off.append(flow.done(cuts) / bound(flow) - 1)
    figures = f"{statistics.median(times):.1f} | {max(times):.1f}"
    far = f"{statistics.median(off):.2%} | {max(off):.2%}"
    print(f"| {name} | {len(flow.each)} | {len(times)} | {figures} | {far} |", flush=True)


if __name__ == "__main__":
    main()
