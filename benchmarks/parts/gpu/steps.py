"""Measurements of `gpu.py` on networks: all layers of a network, and whole training steps.

The process group has one rank over NCCL: the times show the cost of a hook beyond plain
DistributedDataParallel, without communication. Without a GPU a small network runs over gloo.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.codecs import make_codec

OURS = ("topk(ratio=0.001)", "qsgd", "efsignsgd")
RANK = 4
PLAIN = "step: plain DDP"


def network(device: str) -> nn.Module:
    """Returns ResNet50 on a GPU, or a small network on a CPU."""
    if device == "cpu":
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10))
    from torchvision.models import resnet50

    return resnet50().to(device)  # type: ignore[no-any-return]


def layers(device: str) -> list[Tensor]:
    """Returns a random gradient of each layer with more than one dimension."""
    generator = Generator().manual_seed(3)
    sizes = [part.shape for part in network(device).parameters() if part.ndim > 1]
    return [torch.randn(size, generator=generator).to(device) for size in sizes]


def spectral(gradients: list[Tensor]) -> Callable[[], object]:
    """Returns a function that encodes all layers in one call, as for the layers of a bucket."""
    codec = make_codec("svd(rank=3)")
    generators = [Generator().manual_seed(place) for place in range(len(gradients))]
    return lambda: [*codec.encode_all(gradients, generators)]


def spectral_alone(gradients: list[Tensor]) -> Callable[[], object]:
    """Returns a function that encodes each layer in a call of its own."""
    codec = make_codec("svd(rank=3)")
    generator = Generator().manual_seed(1)
    return lambda: [codec.encode(gradient, generator) for gradient in gradients]


def power_iteration(gradients: list[Tensor]) -> Callable[[], object]:
    """Returns a PowerSGD step for each matrix: two products and an orthonormal basis."""
    matrices = [gradient.flatten(1) for gradient in gradients]
    starts = [torch.randn(matrix.shape[1], RANK, device=matrix.device) for matrix in matrices]

    def run() -> list[Tensor]:
        bases = [
            torch.linalg.qr(matrix @ start).Q
            for matrix, start in zip(matrices, starts, strict=True)
        ]
        return [matrix.T @ basis for matrix, basis in zip(matrices, bases, strict=True)]

    return run


def steps(device: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields a training step of batch 128 with each hook, by name."""
    if not dist.is_initialized():
        store = Path(tempfile.mkdtemp()) / "store"
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{store}", rank=0, world_size=1)
    yield PLAIN, step(device, lambda ddp: None)
    for spec in OURS:
        yield f"step: {spec}", step(device, hooked(spec))
    yield "step: PyTorch's fp16", step(device, half)
    yield "step: PyTorch's PowerSGD", step(device, power)


def hooked(spec: str) -> Callable[[DistributedDataParallel], None]:
    return lambda ddp: ddp.register_comm_hook(*atomo.ddp_hook(ddp, spec))


def half(ddp: DistributedDataParallel) -> None:
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)


def power(ddp: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, RANK, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def step(device: str, hook: Callable[[DistributedDataParallel], Any]) -> Callable[[], object]:
    """Returns a function that runs a forward pass, a backward pass and an update."""
    ddp = DistributedDataParallel(network(device))
    hook(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    images = (
        torch.randn(128, 3, 224, 224, device=device)
        if device == "cuda"
        else (torch.randn(8, 3, 4, 4))
    )
    labels = torch.arange(len(images), device=device) % 10

    def run() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run
