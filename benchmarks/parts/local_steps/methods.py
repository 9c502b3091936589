"""Methods of local_steps.py: data-parallel training, and local steps, of several systems.

The published files of DeMo and of SparseLoCo (CCLoco) are not part of this project. `--peers` names
a folder with `demo.py` and `ccloco.py`; without it these methods are not measured. Neither is
torchft's DiLoCo where that package is not installed (`pip install torchft`).
"""

import fcntl
import importlib
import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Protocol, final

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import atomo
from ddp_train import has_momentum, wrapped

__all__ = ["METHODS", "Method", "Trainer", "can_run", "make_trainer"]


@final
@dataclass(frozen=True)
class Method:
    """A way to train on several ranks."""

    kind: str
    """ddp, post-local, local, demo, ccloco or torchft."""
    setting: str = ""
    """The hook of DDP as in ddp_train.py, or the codec of local steps."""
    every: int = 1
    """The steps in a round."""
    outer: str = "sgd(lr=1)"
    memory: str = "auto"
    overlap: int | Literal["round"] = 0
    """The steps during which an exchange continues; `round`: one round late."""
    dense_steps: int = 0
    """The first steps, each with an exchange."""
    fragments: int = 1
    """The parts of the model, exchanged in turn."""
    mix: float = 0.0
    """The weight of a rank's own weights after an exchange."""

    @property
    def is_local(self) -> bool:
        """True if ranks train alone between two exchanges."""
        return self.kind in ("local", "post-local", "ccloco", "torchft")


DECAY: Final = "residual(decay=0.95)"
ROUNDS: Final = (8, 32, 128)
SHARES: Final = {8: 3, 32: 10, 128: 10}
"""Percent of the entries that a round sends: longer rounds have time for more."""


def local_methods() -> Iterator[tuple[str, Method]]:
    """Yields the methods with local steps."""
    for every in ROUNDS:
        yield f"PostLocalSGD {every}", Method("post-local", every=every)
        yield f"torchft {every}", Method("torchft", every=every)
        yield f"ours {every} sgd", Method("local", "sgd", every)
        yield f"ours {every} lloydmax", Method("local", "lloydmax", every, memory=DECAY)
        sparse = f"tiletopk(ratio={SHARES[every] / 100}, values=lloydmax)"
        name = f"ours {every} tiletopk {SHARES[every]} %"
        yield name, Method("local", sparse, every, memory=DECAY)
        if every == ROUNDS[0]:
            yield "ours 16 lloydmax", Method("local", "lloydmax", 16, memory=DECAY)
            yield (
                "ours 16 streaming lloydmax",
                Method("local", "lloydmax", 16, memory=DECAY, overlap=2, fragments=4, mix=0.5),
            )


METHODS: Final[Mapping[str, Method]] = {
    "DDP": Method("ddp", "none"),
    "DDP bf16": Method("ddp", "bf16"),
    "DDP PowerSGD": Method("ddp", "powersgd:4"),
    "DeMo": Method("demo"),
    "SparseLoCo 32": Method("ccloco", every=32),
    "ours 1 topk": Method("ddp", "atomo:topk(ratio=0.01)"),
    "ours 1 PowerSGD": Method("ddp", "atomo:powersgd(rank=4)"),
    **dict(local_methods()),
}


class Trainer(Protocol):
    """A model with the optimizer of a method."""

    model: nn.Module
    """The model to call."""
    inner: Optimizer
    """The optimizer that has the learning rate."""

    def step(self) -> None:
        """Takes a step, and the exchange that is due."""

    def anchor(self) -> AbstractContextManager[Any]:
        """Puts the weights to evaluate into the model for a block."""

    @property
    def sent_bytes(self) -> int:
        """The payload that this rank has sent; 0: not counted."""


@final
class DataParallel:
    """DDP with a hook; with `atomo:SPEC`, ours."""

    def __init__(self, method: Method, model: nn.Module, inner: Optimizer) -> None:
        momentum = float(inner.param_groups[0].get("momentum", 0.0))
        first = dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
        self.model: nn.Module = wrapped(model, method.setting, momentum)
        dist._DEFAULT_FIRST_BUCKET_BYTES = first  # type: ignore[attr-defined]
        if has_momentum(method.setting, momentum):
            inner.param_groups[0]["momentum"] = 0.0
        self.inner = inner
        self.sent_bytes = 0

    def step(self) -> None:
        self.inner.step()

    def anchor(self) -> AbstractContextManager[Any]:
        return nullcontext()


@final
class LocalSteps:
    """Local steps of `atomo.local_steps`."""

    def __init__(self, method: Method, model: nn.Module, inner: Optimizer) -> None:
        self.model, self.inner = model, inner
        self._optimizer = atomo.local_steps(
            model,
            inner,
            method.setting,
            every={0: 1, method.dense_steps: method.every} if method.dense_steps else method.every,
            outer=method.outer,
            overlap=method.overlap,
            fragments=method.fragments,
            mix=method.mix,
            memory=method.memory,
            process_group=dist.group.WORLD,
        )

    def step(self) -> None:
        self._optimizer.step()

    def anchor(self) -> AbstractContextManager[Any]:
        return self._optimizer.anchor()

    @property
    def sent_bytes(self) -> int:
        """The frames of differences; buffers are added by their size, a mean of R ranks sends
        2 (R - 1) / R of it.
        """
        stats, size = self._optimizer.exchange.stats, dist.get_world_size()
        buffers = (b for b in self.model.buffers() if b.is_floating_point())
        width = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        return stats.sent_bytes + stats.steps * 2 * (size - 1) * width // size


@final
class PostLocal:
    """PyTorch's PostLocalSGDOptimizer, without a first phase of averaged gradients."""

    def __init__(self, method: Method, model: nn.Module, inner: Optimizer) -> None:
        ddp = DistributedDataParallel(model)
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        own = groups[dist.get_rank()]
        state = PostLocalSGDState(  # type: ignore[no-untyped-call]
            None, own, 0, post_local_gradient_allreduce=False
        )
        ddp.register_comm_hook(state, post_localSGD_hook)
        # The averager counts from 0, and averages after step number `warmup_steps`.
        averager = PeriodicModelAverager(method.every, warmup_steps=method.every - 1)
        self.model: nn.Module = ddp
        self.inner = inner
        self.sent_bytes = 0
        self._optimizer = PostLocalSGDOptimizer(inner, averager)

    def step(self) -> None:
        self._optimizer.step()  # type: ignore[no-untyped-call]

    def anchor(self) -> AbstractContextManager[Any]:
        return nullcontext()


@final
class Demo:
    """DeMo's published file with its published settings, except for the learning rate."""

    def __init__(self, model: nn.Module, inner: Optimizer, peers: Path) -> None:
        rate = inner.param_groups[0]["lr"]
        self.model = model
        self.inner: Optimizer = peer(peers, "demo").DeMo(model.parameters(), lr=rate)
        self.sent_bytes = 0

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.inner.step()
        self.sent_bytes += self.inner.data_transmit  # type: ignore[attr-defined]

    def anchor(self) -> AbstractContextManager[Any]:
        return nullcontext()


@final
class SparseLoCo:
    """SparseLoCo's published file, called as its training script calls it."""

    def __init__(self, method: Method, model: nn.Module, inner: Optimizer, peers: Path) -> None:
        self.model, self.inner = model, inner
        self.sent_bytes = 0
        self._every, self._steps = method.every, 0
        self._outer = peer(peers, "ccloco").CCLoco(
            model.parameters(), lr=1.0, error_decay=0.95, top_k=128, chunk_size=64,
            use_quantization=True, quantization_bins=4, quantization_range=6,
        )  # fmt: skip
        self._anchor = self._weights()

    def _weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def step(self) -> None:
        self.inner.step()
        self._steps += 1
        if self._steps % self._every:
            return
        for parameter, anchor in zip(self.model.parameters(), self._anchor, strict=True):
            parameter.grad = anchor - parameter.detach()
            parameter.data.copy_(anchor)
        self._outer.step()
        self._anchor = self._weights()

    def anchor(self) -> AbstractContextManager[Any]:
        return self._in_model()

    @contextmanager
    def _in_model(self) -> Iterator[None]:
        """Yields: evaluations take place after an exchange, when the model is the anchor."""
        yield


@final
class Torchft:
    """torchft's DiLoCo: each rank is a replica group; rank 0 has the lighthouse."""

    def __init__(self, method: Method, model: nn.Module, inner: Optimizer) -> None:
        self.model, self.inner = model, inner
        self.sent_bytes = 0
        address, world = own_address(), dist.get_world_size()
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self._manager = self._join(address, world)
        outer = outer_sgd(method.outer, model)
        diloco = importlib.import_module("torchft.local_sgd").DiLoCo
        diloco(self._manager, [model], inner, outer, method.every).__enter__()

    def _join(self, address: str, world: int) -> Any:
        torchft = importlib.import_module("torchft")
        at = [""]
        if not dist.get_rank():
            kind = importlib.import_module("torchft.coordination").LighthouseServer
            self._lighthouse = kind(bind="0.0.0.0:0", min_replicas=world)
            port = self._lighthouse.address().rpartition(":")[2]
            at = [f"http://{address}:{port}"]
        dist.broadcast_object_list(at)
        # All ranks begin with the same weights, so none copies those of another.
        return torchft.Manager(
            torchft.ProcessGroupGloo(timeout=timedelta(seconds=120)),
            None, None, world, use_async_quorum=False, init_sync=False, rank=0, world_size=1,
            store_addr=address, store_port=self._store.port, hostname=address,
            lighthouse_addr=at[0], replica_id=f"rank_{dist.get_rank()}",
            timeout=timedelta(seconds=120),
        )  # fmt: skip

    def step(self) -> None:
        self.inner.step()

    def anchor(self) -> AbstractContextManager[Any]:
        """Changes nothing: evaluations take place after an exchange, when the model is the
        anchor.
        """
        return nullcontext()


def outer_sgd(spec: str, model: nn.Module) -> Optimizer:
    """Returns the outer optimizer of a spec of `atomo.local_steps`."""
    words = dict(pair.split("=") for pair in spec[4:-1].replace(" ", "").split(","))
    momentum, nesterov = float(words.get("momentum", "0")), words.get("nesterov") == "yes"
    return torch.optim.SGD(
        model.parameters(), lr=float(words["lr"]), momentum=momentum, nesterov=nesterov
    )


def own_address() -> str:
    """Returns the address of this host on the network device of the process group."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        name = struct.pack("256s", os.environ["GLOO_SOCKET_IFNAME"].encode())
        return socket.inet_ntoa(fcntl.ioctl(endpoint, 0x8915, name)[20:24])  # SIOCGIFADDR


def can_run(method: Method, peers: Path | None) -> bool:
    """True if the files or the package that a method needs are here."""
    if method.kind == "torchft":
        return importlib.util.find_spec("torchft") is not None
    return method.kind not in ("demo", "ccloco") or peers is not None


def peer(folder: Path, name: str) -> Any:
    """Imports a published file. Both files need `einops`, in that folder or installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(name)


def make_trainer(
    method: Method, model: nn.Module, inner: Optimizer, peers: Path | None = None
) -> Trainer:
    """Wraps a model and an optimizer in a method. All ranks call it."""
    if method.kind in ("demo", "ccloco"):
        if peers is None:
            raise SystemExit(f"{method.kind}: give --peers FOLDER with its published file")
        broadcast(model)
        if method.kind == "demo":
            return Demo(model, inner, peers)
        return SparseLoCo(method, model, inner, peers)
    kinds: Mapping[str, Callable[[Method, nn.Module, Optimizer], Trainer]] = {
        "ddp": DataParallel,
        "post-local": PostLocal,
        "torchft": Torchft,
        "local": LocalSteps,
    }
    return kinds[method.kind](method, model, inner)


def broadcast(model: nn.Module) -> None:
    """Copies the weights of rank 0 to all ranks."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
