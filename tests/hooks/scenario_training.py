"""Training of a small network with a hook, for the ranks of `scenarios.py`."""

import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.errors import AtomoError

RUN = Path(sys.argv[0]).name == "scenarios.py"  # not an import by a tool
RANK, SIZE, FOLDER = (
    (int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])) if RUN else (0, 1, Path())
)
SMALL = {"bucket_cap_mb": 0.02}  # several buckets
STEPS = 20
TEACHER = torch.randn(32, 5, generator=torch.Generator().manual_seed(5))


def network() -> nn.Module:
    """Returns a network with the same weights on all ranks."""
    torch.manual_seed(1)
    layers = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 5)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def batches(count: int = STEPS, rank: int = RANK) -> list[tuple[Tensor, Tensor]]:
    """Returns a rank's own batches, with labels of a teacher network."""
    generator = torch.Generator().manual_seed(100 + rank)
    images = [torch.randn(32, 32, generator=generator) for _ in range(count)]
    return [(image, (image @ TEACHER).argmax(1)) for image in images]


def wrapped(model: nn.Module, code: str | None, options: dict[str, Any], **settings: Any) -> Any:
    """DDP around a model, with the hook, and the hook's state."""
    ddp = DistributedDataParallel(model, **options)
    if code is None:
        return ddp, None
    state, hook = atomo.ddp_hook(ddp, code, **settings)
    ddp.register_comm_hook(state, hook)
    return ddp, state


def sgd(ddp: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=momentum)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def check_alike(model: nn.Module) -> None:
    """All ranks have the same bits."""
    own = flat(model)
    weights = [torch.empty_like(own) for _ in range(SIZE)]
    dist.all_gather(weights, own)
    assert all(other.equal(own) for other in weights)


def total(state: Any) -> Tensor:
    """Returns the sum of all ranks' memories."""
    memories = state.state_dict()["memories"][str(RANK)]
    residual = torch.cat([memories[name].flatten() for name in sorted(memories)])
    dist.all_reduce(residual)
    return residual


def train(
    code: str | None,
    options: dict[str, Any] | None = None,
    momentum: float = 0.0,
    micro: int = 1,
    clip: float = 0.0,
    model: nn.Module | None = None,
    **settings: Any,
) -> tuple[Tensor, list[float], Any]:
    """Returns the weights after some steps, the losses, and the hook's state."""
    options = SMALL if options is None else options
    ddp, state = wrapped(model or network(), code, options, **settings)
    optimizer = sgd(ddp, momentum)
    losses = []
    for number, (images, labels) in enumerate(batches()):
        with ddp.no_sync() if (number + 1) % micro else nullcontext():
            loss = cross_entropy(ddp(images), labels)
            loss.backward()
        losses.append(loss.item())
        if (number + 1) % micro == 0:
            if clip:
                nn.utils.clip_grad_norm_(ddp.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    check_alike(ddp)
    return flat(ddp), losses, state


def step(ddp: nn.Module, images: Tensor, labels: Tensor) -> None:
    cross_entropy(ddp(images), labels).backward()


def expect(kind: type[AtomoError], words: str, body: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        body()
