"""Ranks that stop and go on, and ranks that never stop: `resuming.py RANK SIZE FOLDER KIND`.

KIND is "every" for all codecs and methods, or "settings" for the other settings that change the
path of a bucket.
"""

import copy
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.codecs import CODECS

RANK, SIZE, FOLDER, KIND = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
METHODS = ("powersgd(rank=2)", "acpsgd(rank=2)", "chunked(ratio=0.1, chunk=16)")
STOP, STEPS = 3, 6
Batch = tuple[Tensor, Tensor]


class Layers(nn.Module):
    """Bias before weight: DDP's buckets of the first pass divide the layers otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        sizes = (24, 40, 48, 32, 5)
        self.layers = nn.ModuleList(map(nn.Linear, sizes[:-1], sizes[1:]))

    def forward(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            images = layer(images).tanh()
        return images


def batches() -> list[Batch]:
    """This rank's own."""
    generator = torch.Generator().manual_seed(100 + RANK)
    images = torch.randn(STEPS, 16, 24, generator=generator)
    labels = torch.randint(5, (STEPS, 16), generator=generator)
    return [*zip(images, labels, strict=True)]


class Run:
    """A model that DDP trains with a hook, or a wrapped optimizer."""

    def __init__(self, code: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
        self.model, self.scaler = Layers(), torch.amp.GradScaler("cpu", enabled=False)
        self.sgd: Any = torch.optim.SGD(self.model.parameters(), lr=0.05)
        if options.get("wraps"):
            self.sgd = atomo.wrap_optimizer(self.sgd, self.model, code, bucket_mb=0.008)
            self.called: nn.Module = self.model
            self.state = self.sgd.exchange
            return
        ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.008, **options)
        if settings.get("scaler"):
            settings = {**settings, "scaler": torch.amp.GradScaler("cpu", init_scale=64.0)}
            self.scaler = settings["scaler"]
        if settings.get("optimizer"):
            settings = {**settings, "optimizer": self.sgd}
        self.state, hook = atomo.ddp_hook(ddp, code, **settings)
        ddp.register_comm_hook(self.state, hook)
        self.called = ddp

    def train(self, data: Sequence[Batch]) -> "Run":
        for images, labels in data:
            self.sgd.zero_grad()
            self.scaler.scale(cross_entropy(self.called(images), labels)).backward()
            self.scaler.step(self.sgd)
            self.scaler.update()
        return self

    def saved(self) -> tuple[Any, ...]:
        parts = self.model, self.sgd, self.scaler, self.state
        return copy.deepcopy(tuple(one.state_dict() for one in parts))

    def load(self, saved: tuple[Any, ...]) -> "Run":
        parts = self.model, self.sgd, self.scaler, self.state
        for one, state in zip(parts, saved, strict=True):
            one.load_state_dict(state)
        return self


def check(code: str, options: dict[str, Any] | None = None, **settings: Any) -> None:
    """A run that stops has the weights of one that does not, to the bit."""
    data, kinds = batches(), (options or {}, settings)
    whole = Run(code, *kinds).train(data[:STOP])
    saved = whole.saved()
    whole.train(data[STOP:])
    again = Run(code, *kinds).load(saved).train(data[STOP : STOP + 1])
    again = Run(code, *kinds).load(again.saved()).train(data[STOP + 1 :])
    pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    differ = max(float((mine - other).detach().abs().max()) for mine, other in pairs)
    assert differ == 0, (code, kinds, differ)


def every() -> None:
    for code in (*CODECS, *METHODS):
        check(code)


def settings() -> None:
    check("topk(ratio=0.1)", memory="dgc", momentum=0.9)  # holds a step until its norm is known
    check("qsgd", {"gradient_as_bucket_view": True})
    check("qsgd", {"static_graph": True})
    check("qsgd", {"find_unused_parameters": True})
    check("fp16", scaler=True)
    check("qsgd(bits=2)", optimizer=True, scaler=True)  # whose noise damps steps
    check("qsgd(bits=2)", optimizer=True, hierarchical=2)
    check("chunked(ratio=0.1, chunk=16)", dense_below=1000, dense_steps=4)
    for code in ("topk", "fp16", "sgd"):
        check(code, hierarchical=2)
    for code in ("qsgd", "fp16", METHODS[-1]):
        check(code, {"wraps": True})


def main() -> None:
    torch.set_num_threads(1)
    store, wait = f"file://{FOLDER / 'store'}", timedelta(seconds=300)
    dist.init_process_group("gloo", store, wait, rank=RANK, world_size=SIZE)
    {"every": every, "settings": settings}[KIND]()
    dist.destroy_process_group()


main()
