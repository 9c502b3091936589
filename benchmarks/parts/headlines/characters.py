"""The transformer of headlines.py: a character model as nanoGPT trains it, with averaged gradients.

The published run: 4 layers, 4 heads, 128 wide, windows of 64 characters, 12 windows a step, AdamW
for 2000 steps; validation loss 1.88 on the works of Shakespeare. Here the text is the documentation
of Python's library, since every Python has it. Two ranks have 6 windows each, as threads of one
process.
"""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import atomo
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.optimizer import AveragedOptimizer
from atomo.transports import LocalTransport
from atomo.workloads.language.transformer import TransformerLanguageModel
from parts.local_steps.workloads import VOCABULARY, Batch, Characters
from parts.thread_jobs import run_ranks

__all__ = [
    "SEEDS",
    "SETTINGS",
    "SHORT",
    "STEPS",
    "TRANSFORMERS",
    "TRIALS",
    "Method",
    "time_codes",
    "train_characters",
]

STEPS: Final = 2000
SEEDS: Final = (1, 2)
RANKS: Final = 2
PEAK, LEAST, WARM_UP = 1e-3, 1e-4, 100
EVERY: Final = 50  # steps between two evaluations

SHORT: Final = "dense-short"
"""Dense, with as many steps as fit in the seconds of the fastest method over 100 Mbit/s."""


@dataclass(frozen=True)
class Method:
    """Settings with which the transformer is trained."""

    code: str
    memory: str = "auto"
    schedule: int = STEPS
    """Steps of the schedule of the rate."""
    steps: int = STEPS
    """Steps that are taken."""
    beta2: float = 0.99
    clips: bool = True
    """Gradients are clipped to norm 1 on each rank."""
    windows: int = 12
    """Windows of a batch, those of all ranks together."""
    constant: bool = False
    """The rate is the peak at every step."""
    small: bool = False
    """2 layers of 96 whose last matrix is the embedding, as in benchmarks/adam.py."""


TRANSFORMERS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "dense": Method("sgd"),
        SHORT: Method("sgd", schedule=350, steps=350),
        "topk": Method("topk(ratio=0.01)"),
        "powersgd": Method("powersgd(rank=4)"),
        "topk-residual": Method("topk(ratio=0.01)", "residual"),
        "efsignsgd": Method("efsignsgd"),
        "svd": Method("svd(rank=3)"),
        "qsgd": Method("qsgd(bits=4)"),
        "natural": Method("natural"),
        "onebit": Method("onebit"),
        "terngrad": Method("terngrad"),
        "dgc": Method("dgc(ratio=0.001)"),
        "svd-top": Method("svd(rank=3, selection=top)"),
    }
)
TRIED: Final = 600
"""Steps of a trial: the two memories of topk differ from step 200 on."""
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "published": {},
        "beta2 0.999": {"beta2": 0.999},
        "no clipping": {"clips": False},
        "beta2 0.999, no clipping": {"beta2": 0.999, "clips": False},
        "constant rate": {"constant": True},
        "32 windows": {"windows": 32},
        "2 layers of 96, tied": {"small": True},
        "all of these": {
            "beta2": 0.999,
            "clips": False,
            "constant": True,
            "windows": 32,
            "small": True,
        },
    }
)
"""Fields of `Method` that each trial changes."""
TRIALS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        f"{memory}: {name}": Method("topk(ratio=0.01)", memory, steps=TRIED, **changes)
        for name, changes in SETTINGS.items()
        for memory in ("adam", "residual")
    }
)
"""Runs that tell why a residual is ahead of the default memory: the setting that changes it."""
Record = dict[str, Any]


def rate_of(step: int, steps: int) -> float:
    """Returns the learning rate of a step, which counts from 0."""
    warm_up = WARM_UP * steps // STEPS
    if step < warm_up:
        return PEAK * (step + 1) / (warm_up + 1)
    angle = math.pi * (step - warm_up) / (steps - warm_up)
    return LEAST + 0.5 * (1 + math.cos(angle)) * (PEAK - LEAST)


def optimizer_of(model: nn.Module, beta2: float) -> torch.optim.AdamW:
    """Returns AdamW, which decays the weights of matrices alone."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, beta2), weight_decay=0.1, fused=True)


class Ranks:
    """The ranks of one training, as threads."""

    def __init__(self, workload: Characters, method: Method, seed: int) -> None:
        torch.manual_seed(seed)
        first = small_model(workload) if method.small else workload.build()
        self._workload, self._seed = workload, seed
        self._method = method
        self.models = [copy.deepcopy(first) for _ in range(RANKS)]
        self.points: list[tuple[int, float]] = []
        self.sent_bytes = self.seconds = 0.0

    def train(self, steps: int, every: int = EVERY) -> None:
        """Takes all steps; raises the error of the first failed rank."""

        def body(transport: LocalTransport) -> None:
            torch.set_num_threads(1)
            self._train_rank(transport.rank, Direct(transport, 120.0), steps, every)

        run_ranks(RANKS, body)

    def _train_rank(self, rank: int, collective: Direct, steps: int, every: int) -> None:
        model = self.models[rank]
        wrapped = atomo.wrap_optimizer(
            optimizer_of(model, self._method.beta2), model, self._method.code,
            memory=self._method.memory, seed=self._seed, collective=collective,
        )  # fmt: skip
        for step in range(steps):
            started = time.perf_counter()
            rate = PEAK if self._method.constant else rate_of(step, self._method.schedule)
            self._step(wrapped, model, step, rank, rate)
            if rank == 0:
                self.seconds += time.perf_counter() - started
                if (step + 1) % every == 0:
                    self.points.append((step + 1, round(validation_loss(self._workload, model), 4)))
        if rank == 0:
            self.sent_bytes = wrapped.exchange.stats.sent_bytes / steps

    def _step(
        self, wrapped: AveragedOptimizer, model: nn.Module, step: int, rank: int, rate: float
    ) -> None:
        for group in wrapped.param_groups:
            group["lr"] = rate
        batch: Batch = self._workload.batch(step + 1, rank, RANKS, self._seed)
        wrapped.zero_grad()
        loss = self._workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        # Of each rank, before the codec: a memory of updates has no mean gradient to clip.
        if self._method.clips:
            clip_grad_norm_(model.parameters(), 1.0)
        wrapped.step()


def validation_loss(workload: Characters, model: nn.Module) -> float:
    """Returns the mean cross entropy on the test text."""
    return workload.metric(workload.sums(model, 0, 1))


def small_model(workload: Characters) -> nn.Module:
    """Returns the model of benchmarks/adam.py for the text of a workload."""
    return TransformerLanguageModel(len(VOCABULARY), 96, 2, 4, 0.0, True, workload.block)


def workload_of(windows: int = 12) -> Characters:
    """Returns the text; a step of all ranks takes so many windows of it."""
    workload = Characters(Path())
    workload.batch_size = windows // RANKS
    return workload


def train_characters(name: str, seed: int) -> Record:
    """Trains with a code; returns the record, with losses by steps."""
    method = TRANSFORMERS.get(name) or TRIALS[name]
    ranks = Ranks(workload_of(method.windows), method, seed)
    ranks.train(method.steps)
    points = [list(point) for point in ranks.points]
    return {"method": name, "seed": seed, "points": points, "sent_bytes": round(ranks.sent_bytes)}


def time_codes(names: Sequence[str], steps: int = 40, turns: int = 3) -> list[Record]:
    """Times steps of the codes in turns; returns a record of each, with its least mean."""
    workload, means = workload_of(), dict[str, list[float]]()
    for _ in range(turns):
        for name in names:
            ranks = Ranks(workload, TRANSFORMERS[name], 1)
            ranks.train(steps, every=steps + 1)
            means.setdefault(name, []).append(ranks.seconds / steps)
    return [{"method": name, "step_s": round(min(means[name]), 5)} for name in names]
