"""One rank of a training run with PyTorch's DDP, for comparison with `atomo train`.

    python benchmarks/ddp_train.py --rank R --world N --master HOST --hook powersgd:4 --out runs/x

The script trains the same model as `atomo train`, with the same initial weights, the same images in
the same order for each worker, and the same SGD. Rank 0 writes metrics.jsonl and evaluations.jsonl
like `atomo train`. The time of a step does not include evaluations.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.core.randomness import derive
from atomo.hooks.options.hook_config import HookConfig
from atomo.memory import kind_of
from atomo.training.job.shard import Shard
from atomo.workloads.datasets import Dataset, load_dataset
from atomo.workloads.models import build_model

ONE_BUCKET_MB = 1000  # with several buckets, the PowerSGD hook starts collectives out of order


def main() -> None:
    """Joins the process group, trains, and leaves the group."""
    options = parse()
    join(options)
    try:
        train(options)
    finally:
        dist.destroy_process_group()


def join(options: argparse.Namespace) -> None:
    """Initializes the process group."""
    torch.set_num_threads(options.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", options.interface)
    address = f"tcp://{options.master}:{options.port}"
    dist.init_process_group(
        "gloo", init_method=address, rank=options.rank, world_size=options.world
    )


def add_group_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the process group, and of the output of its rank 0."""
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world", type=int)
    parser.add_argument("--master", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=29511)
    parser.add_argument("--interface", default="eth0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_group_options(parser)
    parser.add_argument(
        "--hook", default="none", help="none, bf16, fp16, powersgd:RANK or atomo:SPEC"
    )
    parser.add_argument("--network", default="LeNet")
    parser.add_argument("--dataset", default="MNIST")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=25, help="steps between evaluations; 0: none")
    parser.add_argument("--target", type=float, default=2.0, help="end at this accuracy")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def wrapped(
    model: nn.Module, hook: str, momentum: float = 0.0, **settings: Any
) -> DistributedDataParallel:
    """Returns the model in DDP with a hook.

    Args:
        model: the model.
        hook: a value of `--hook`.
        momentum: the momentum of the optimizer.
        settings: other arguments of DDP.
    """
    name, _, setting = hook.partition(":")
    if name == "powersgd":
        return power_sgd(model, int(setting), **settings)[0]
    ddp = DistributedDataParallel(model, **settings)
    if name == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif name == "nothing":
        ddp.register_comm_hook(None, give_back)
    elif name == "atomo":
        own = momentum if has_momentum(hook, momentum) else 0.0
        exchange, hook_function = atomo.ddp_hook(ddp, setting, momentum=own)
        ddp.register_comm_hook(exchange, hook_function)
    elif name != "none":
        raise SystemExit(f"--hook {hook}: none, nothing, bf16, fp16, powersgd:RANK or atomo:SPEC")
    return ddp


def power_sgd(
    model: nn.Module, rank: int, **settings: Any
) -> tuple[DistributedDataParallel, PowerSGDState]:
    """Returns the model in DDP with PyTorch's PowerSGD hook of a rank, and the hook's state."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = ONE_BUCKET_MB * 2**20  # type: ignore[attr-defined]
    ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET_MB, **settings)
    state = PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=2,
        warm_start=True,
    )
    ddp.register_comm_hook(state, powerSGD_hook)
    return ddp, state


def give_back(state: object, bucket: GradBucket) -> Future[Tensor]:
    """Returns the bucket without averaging; a DDP communication hook."""
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def has_momentum(hook: str, momentum: float) -> bool:
    """True if the memory of a hook applies momentum; the optimizer then applies none."""
    name, _, setting = hook.partition(":")
    if name != "atomo":
        return False
    return kind_of(HookConfig(setting, momentum=momentum).memory_spec).has_momentum


def train(options: argparse.Namespace) -> None:
    """Trains the model."""
    data = load_dataset(options.dataset, Path(options.data_dir))
    torch.manual_seed(derive(options.seed, "weights"))
    model = build_model(options.network, data.input_shape, data.classes)
    ddp = wrapped(model, options.hook, options.momentum)
    momentum = 0.0 if has_momentum(options.hook, options.momentum) else options.momentum
    optimizer = torch.optim.SGD(ddp.parameters(), lr=options.lr, momentum=momentum)
    total, seed = len(data.train), options.seed
    shard = Shard(total, options.world, options.rank, options.batch_size, seed)
    for step in range(1, options.steps + 1):
        dist.barrier()
        started = time.perf_counter()
        images, labels = data.train.batch(shard.indices(step))
        optimizer.zero_grad()
        loss = cross_entropy(ddp(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step_s = time.perf_counter() - started
        record(options, "metrics", {"step": step, "loss": float(loss), "step_s": step_s})
        if options.every and step % options.every == 0 and done(options, ddp.module, data, step):
            return


def done(options: argparse.Namespace, model: nn.Module, data: Dataset, step: int) -> bool:
    """True if the target accuracy is reached; rank 0 measures, and broadcasts the answer."""
    reached = torch.zeros(1)
    if options.rank == 0:
        top1 = accuracy(model, data)
        record(options, "evaluations", {"step": step, "top1": top1})
        reached += float(top1 >= options.target)
    dist.broadcast(reached, 0)
    return bool(reached)


def accuracy(model: nn.Module, data: Dataset) -> float:
    """Computes the top-1 accuracy on the test images."""
    model.eval()
    right = 0
    with torch.inference_mode():
        for part in torch.split(torch.arange(len(data.test)), 1000):
            images, labels = data.test.batch(part)
            right += int((model(images).argmax(1) == labels).sum())
    model.train()
    return right / len(data.test)


def record(options: argparse.Namespace, name: str, line: dict[str, Any]) -> None:
    """Appends one line of JSON to a file, on rank 0."""
    if options.rank or options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
