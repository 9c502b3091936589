"""Ranks of a job on GPUs, as a script: `cuda_ranks.py RANK SIZE FOLDER BACKEND CODE DTYPE`.

Each rank prints its weights after some steps: they are equal on all ranks if the hook averages.
"""

import hashlib
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atomo

STEPS = 20


def main(rank: int, size: int, folder: Path, backend: str, code: str, dtype: torch.dtype) -> None:
    """Trains on GPUs, one for each rank if there are enough; over gloo on the CPU."""
    device = torch.device("cpu")
    if backend != "gloo":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = f"file://{folder / 'store'}"
    dist.init_process_group(backend, store, rank=rank, world_size=size)
    torch.manual_seed(1)
    layers = nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 10)
    model = nn.Sequential(*layers).to(device, dtype)
    ids = None if device.index is None else [device.index]
    ddp = DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=0.02)
    ddp.register_comm_hook(*atomo.ddp_hook(ddp, code))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    inputs = torch.randn(64, 40, generator=torch.Generator().manual_seed(rank)).to(device, dtype)
    labels = torch.arange(64, device=device) % 10
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    weights = torch.cat([one.detach().float().flatten().cpu() for one in model.parameters()])
    print(hashlib.sha256(weights.numpy().tobytes()).hexdigest())  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    where, count, place, over, spec, kind = sys.argv[1:]
    main(int(where), int(count), Path(place), over, spec, getattr(torch, kind))
