"""Runs of local_steps.py: methods, seeds and learning rates."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from parts.local_steps.methods import METHODS, can_run

__all__ = [
    "HOSTS",
    "RATES",
    "STEPS",
    "UNLIMITED",
    "Run",
    "curve_runs",
    "timed_runs",
    "timing_name",
    "whole_runs",
]

Run = Mapping[str, Any]
"""A line of a plan."""

HOSTS: Final = 4
UNLIMITED: Final = "unlimited"
"""The loopback device, in the place of a link."""
RATES: Final = ("10mbit", "50mbit", "200mbit", "1gbit")
STEPS: Final[Mapping[str, int]] = MappingProxyType({"LeNet": 512, "characters": 512})
LEAST: Final[Mapping[str, int]] = MappingProxyType({"LeNet": 256, "characters": 512})
"""Steps before which no run ends: losses are compared there."""
ROUNDS: Final = 7
FEW: Final = 2  # rounds of the published files, whose exchanges take many seconds

LEARNING_RATES: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "LeNet": {"": 0.02},
        "characters": {
            "": 0.002, "DDP PowerSGD": 1e-3, "DeMo": 1e-3,
            "ours 16": 1e-3, "ours 32 sgd": 1e-3, "ours 32 lloydmax": 1e-3,
            "PostLocalSGD 32": 1e-3, "torchft 32": 1e-3,
        },
        "ResNet-20": {"": 1e-3},
    }
)  # fmt: skip
"""By workload, and by the beginning of a method's name; the longest beginning counts."""

PRICE: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "ours 20 lloydmax": {
            "kind": "local", "setting": "lloydmax", "every": 20, "memory": "residual",
        },
        "ours 10 efsignsgd": {
            "kind": "local", "setting": "efsignsgd", "every": 10, "memory": "residual",
        },
    }
)  # fmt: skip
"""Methods of ResNet-20 on CIFAR-10."""


WHOLE: Final = (
    (
        ("LeNet", "ours 32 tiletopk 10 %"),
        ("characters", "DDP PowerSGD"),
        ("characters", "ours 32 lloydmax"),
        ("characters", "ours 16 streaming lloydmax"),
    ),
    (("LeNet", "DDP"),),
)
"""Workloads and methods of whole runs, over links and without a limit."""


def learning_rate(workload: str, method: str) -> float:
    """Returns the tuned learning rate of a method."""
    rates = LEARNING_RATES[workload]
    return rates[max((name for name in rates if method.startswith(name)), key=len)]


def curve_runs(seeds: Sequence[int]) -> list[Run]:
    """Returns the runs of curves, the first seed of all methods first."""
    runs: list[Run] = []
    for seed in seeds:
        for workload, steps in STEPS.items():
            for name, method in METHODS.items():
                if workload == "LeNet" and method.kind in ("demo", "ccloco"):
                    continue  # their files read matrices and vectors alone
                rate = learning_rate(workload, name)
                run = {"workload": workload, "method": name, "seed": seed, "rate": rate}
                runs.append({**run, "steps": steps, "least": LEAST[workload], "world": HOSTS})
    return [*runs, *price_runs()]


def price_runs() -> Iterator[Run]:
    """Yields the runs of ResNet-20, with two ranks."""
    base: Run = {"workload": "ResNet-20", "seed": 1, "rate": 1e-3, "steps": 500, "least": 500}
    base = {**base, "world": 2}
    yield {**base, "method": "DDP"}
    for name, fields in PRICE.items():
        yield {**base, "method": name, "fields": fields}


def timing_name(method: str) -> str:
    """Returns the name without the steps in a round, which do not change an exchange.

    >>> timing_name("ours 32 tiletopk 10 %"), timing_name("ours 1 topk"), timing_name("DDP bf16")
    ('ours tiletopk 10 %', 'ours 1 topk', 'DDP bf16')
    """
    if not METHODS[method].is_local:
        return method
    words = method.split()
    return " ".join(word for place, word in enumerate(words) if place != 1)


def timed_runs(rate: str, interface: str, peers: Path | None) -> list[Run]:
    """Returns a run for each workload, which times one method of each name."""
    names = sorted(METHODS, key=timing_name)
    firsts = [next(group) for _, group in groupby(names, timing_name)]
    runs: list[Run] = []
    for workload in STEPS:
        files = None if workload == "LeNet" else peers  # they read matrices and vectors alone
        # Exchanges of fragments overlap with steps: `whole` times them.
        timed = (name for name in firsts if METHODS[name].fragments == 1)
        methods = [name for name in timed if can_run(METHODS[name], files)]
        run = {"workload": workload, "link": rate, "interface": interface, "seed": 1}
        rate_of = {"rate": LEARNING_RATES[workload][""]}
        rounds = {n: FEW if METHODS[n].kind in ("demo", "ccloco") else ROUNDS for n in methods}
        runs.append({**run, **rate_of, "methods": methods, "rounds": rounds, "steps": 1})
    return runs


def whole_runs(rate: str, interface: str) -> list[Run]:
    """Returns the runs whose real seconds are compared with products."""
    run = {"seed": 1, "link": rate, "interface": interface, "least": 1, "world": HOSTS}
    return [
        {
            **run,
            "workload": workload,
            "method": method,
            "rate": learning_rate(workload, method),
            "steps": STEPS[workload],
        }
        for workload, method in WHOLE[rate == UNLIMITED]
    ]
