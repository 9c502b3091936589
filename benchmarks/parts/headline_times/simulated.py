"""ATOMO's setting by simulation: steps of 4 and 16 workers, from costs measured on this machine.

A worker's passes over 128 images, the encoding and decoding of each gradient and its bytes are
measured by one thread; `atomo.planning` then predicts a step, as `atomo explain` does. A prediction
with passes of no length is the exchange alone, which no faster processor can shorten.

The published code is predicted as if Atomo carried its messages, during the pass and without
waiting: only its bytes, and its time of encoding, are its own. So its rows are lower bounds.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch

from atomo.cli.explanation.inputs import time_passes
from atomo.cli.explanation.options import ExplainOptions
from atomo.codecs import make_codec
from atomo.config.comm_types import PARAMETER_SERVER
from atomo.planning import Costs, Link, Profile, Scenario, measure_costs, predict
from parts.headline_times.atomo import ATOMO_CODES, AtomoEncoder

__all__ = ["simulate"]

LIKE: Final[Mapping[str, str]] = {
    "published svd": "svd(rank=3)",
    "published qsgd": "qsgd(bits=4)",
}
"""The codec here whose costs, apart from bytes and encoding, stand for the published code's."""
CODES: Final = (
    "sgd", "svd(rank=3)", "svd(rank=3, matricisation=filters)", "qsgd(bits=4)", "qsgd(bits=2)",
    "terngrad",
)  # fmt: skip
WORKERS: Final = (4, 16)
LINKS: Final[Mapping[str, float]] = {"1gbit": 125e6, "100mbit": 12.5e6}
LATENCY_S: Final = 100e-6
DRAWS: Final = 8  # the published `svd` draws its number of atoms, without a bound
BATCH: Final = 128  # of a worker, in the published script


def simulate(network: str, data_dir: str, published: Path | None) -> Iterator[dict[str, Any]]:
    """Yields the predicted seconds of a step for each code, exchange, link and number of workers.

    Args:
        network: name of the network.
        data_dir: the folder with CIFAR-10.
        published: the root of ATOMO's repository; None leaves its rows out.
    """
    options = ExplainOptions(
        network=network, dataset="Cifar10", data_dir=data_dir, batch_size=BATCH, repetitions=2
    )
    profile = time_passes(options)
    for code, costs in measured(profile, published):
        gathers = "Allreduce" if code == "sgd" else "Allgather"
        for communicator, (link, bytes_per_s), workers in product(
            (PARAMETER_SERVER, gathers), LINKS.items(), WORKERS
        ):
            scenario = Scenario(profile, workers, Link(bytes_per_s, LATENCY_S))
            alone = replace(scenario, profile=without_passes(profile))
            yield {
                "code": code, "exchange": communicator, "rate": link, "workers": workers,
                "sent_bytes": round(costs.sent_bytes),
                "passes_s": round(scenario.compute_s, 4),
                "step_s": round(predict(scenario, costs, communicator).step_s, 4),
                "alone_s": round(predict(alone, costs, communicator).step_s, 4),
            }  # fmt: skip


def measured(profile: Profile, published: Path | None) -> Iterator[tuple[str, Costs]]:
    """Measures each code on one thread; yields its costs."""
    torch.set_num_threads(1)
    by_code: dict[str, Costs] = {}
    for code in CODES:
        reduction = "Allreduce" if code == "sgd" else "Allgather"
        by_code[code] = measure_costs(make_codec(code), reduction, profile.gradient)
        yield code, by_code[code]
    if published is None:
        return
    for method in ATOMO_CODES:
        encoder = AtomoEncoder(published, method)
        started, sizes = time.perf_counter(), list[int]()
        for _ in range(DRAWS):
            sizes += map(len, encoder.encode(profile.gradient))
        encode_s = (time.perf_counter() - started) / DRAWS
        yield method, scaled(by_code[LIKE[method]], encode_s, sum(sizes) / DRAWS)


def scaled(costs: Costs, encode_s: float, sent_bytes: float) -> Costs:
    """Returns costs of the same shape with another total of encoding and of bytes."""
    total_s = costs.message.encode_s + sum(cost.encode_s for cost in costs.each)
    longer, larger = encode_s / total_s, sent_bytes / costs.sent_bytes
    message, *each = (
        replace(cost, encode_s=cost.encode_s * longer, sent_bytes=cost.sent_bytes * larger)
        for cost in (costs.message, *costs.each)
    )
    return replace(costs, message=message, each=tuple(each))


def without_passes(profile: Profile) -> Profile:
    """Returns the gradient as if it were computed in no time."""
    ready = tuple(0.0 for _ in profile.ready_s)
    return replace(profile, forward_s=0.0, backward_s=0.0, update_s=0.0, ready_s=ready)
