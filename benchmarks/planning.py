"""Time to plan the grouping of gradients into messages, and the distance of plans from a bound.

    python benchmarks/planning.py

The first rows are ResNet50's 161 gradients, with passes and codecs measured on this machine, among
16 workers on links of 1 Gbit/s. The others are flows that are drawn: encoding, sending and decoding
all matter in them, in all proportions, and messages cost little or much beside, which leaves more
ways open than codecs do. Milliseconds are of a processor, in a process that has planned before;
`off` is how much later than a lower bound of all partitions everything is decoded.
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
SCALES: Final = (0.3, 0.7, 1.0, 3.0)  # of costs, over a gap between two gradients
MESSAGES: Final = (0.05, 0.5, 5.0)  # of one message, in the same unit


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="ResNet50")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tensors", type=int, nargs="*", default=(161, 600))
    options = parser.parse_args()
    best_partition(drawn(0, 3, 1.0, 1.0, 1.0))  # which compiles
    print("| flow | tensors | plans | median, ms | slowest, ms | off, median | off, most |")
    print("|---|---|---|---|---|---|---|")
    for code, flow in measured(options.network, options.image_size):
        show(f"{options.network}, {code}", [flow])
    for tensors, slowing in product(options.tensors, SLOWING):
        seeds = range(options.seeds)
        cases = product(seeds, SCALES, MESSAGES)
        flows = (drawn(seed, tensors, slowing, *rest) for seed, *rest in cases)
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
    """Returns one in which all three machines may matter."""
    draws = np.random.default_rng(seed)
    sizes = draws.exponential(scale, (tensors, 1)) * draws.exponential(1, (tensors, 3))
    ready = np.cumsum(draws.exponential(1, tensors))
    beside = Times(*draws.exponential(message, 3).tolist())
    each = tuple(Times(*row) for row in sizes.tolist())
    return Flow(tuple(ready.tolist()), each, beside, slowing)


def show(name: str, flows: Iterable[Flow]) -> None:
    """A row."""
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
