"""One exchange of a gradient over slow links, with Atomo and with PyTorch's DDP.

    python3 tools/virtual_cluster.py up --hosts 4 --rate 100mbit
    python benchmarks/exchange.py [HOOK ...]

Each host has a gradient of ResNet18 (11.17 M entries, 44.7 MB) of its own images. A backward pass
with little work gives this gradient to DDP in each step. There is one row for each hook: the median
seconds from the start of the pass to the averaged gradient; the part of these seconds that the same
pass without an exchange does not take; the seconds of processor time of a process; and the speedup
relative to the first hook. The hook `nothing` returns gradients without averaging, and shows the
overhead of DDP. With `--bucket-view`, gradients are views of DDP's buckets, which saves the copies
from buckets (`gradient_as_bucket_view=True`). With `--by-thread`, a line below each row has the
milliseconds of processor time of rank 0 in a step, by thread.
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atomo.workloads.models import build_model
from ddp_train import add_group_options, join, wrapped
from parts.thread_times import difference, thread_times
from time_to_accuracy import hosts_of, on_hosts

HOOKS: Final = (
    "none",
    "nothing",
    "fp16",
    "bf16",
    "powersgd:4",
    "atomo:sgd",
    "atomo:svd(rank=3, matricisation=auto)",
    "atomo:topk(ratio=0.001)",
    "atomo:topk(ratio=0.01)",
    "atomo:dgc(ratio=0.001)",
    "atomo:efsignsgd",
    "atomo:qsgd(bits=4)",
)
IMAGES: Final = 16  # of each host, for its gradient


class Replay(nn.Module):
    """Parameters whose gradients repeat recorded ones."""

    def __init__(self, gradients: dict[str, Tensor]) -> None:
        super().__init__()
        self._gradients = [*gradients.values()]
        for place, gradient in enumerate(self._gradients):
            self.register_parameter(f"p{place}", nn.Parameter(torch.zeros_like(gradient)))

    def forward(self) -> Tensor:
        """Returns a loss with the recorded gradients."""
        pairs = zip(self.parameters(), self._gradients, strict=True)
        return torch.stack([torch.dot(p.flatten(), g.flatten()) for p, g in pairs]).sum()


def main() -> None:
    """Starts a process on each host, or runs one of these processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hooks", nargs="*", metavar="HOOK", default=HOOKS)
    parser.add_argument("--hosts", type=Path, default=Path("clusters/virtual/hosts_address"))
    parser.add_argument("--network", default="ResNet18")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--bucket-view", action="store_true", help="gradients are views of buckets")
    parser.add_argument("--by-thread", action="store_true", help="processor time by thread")
    add_group_options(parser)
    options = parser.parse_args()
    if options.rank is not None:
        measure(options)
        return
    hosts = hosts_of(options.hosts)
    print(f"| {options.network}, {len(hosts)} hosts | s | of these, exchange | CPU s | speedup |")
    print("|---|---|---|---|---|", flush=True)
    logs = options.out or Path("runs/exchange")
    words = [__file__, *options.hooks, "--network", options.network, "--times", str(options.times)]
    words += ["--bucket-view"] if options.bucket_view else []
    words += ["--by-thread"] if options.by_thread else []
    print(on_hosts(hosts, words, logs), end="")


def measure(options: argparse.Namespace) -> None:
    """Runs every hook in turn on one rank; rank 0 prints a row for each."""
    join(options)
    gradients = gradient_of(options.network, options.rank)
    plain: float | None = None
    for hook in options.hooks:
        settings = {"init_sync": False, "gradient_as_bucket_view": options.bucket_view}
        ddp = wrapped(Replay(gradients), hook, **settings)  # all parameters are zeros
        step = partial(backward, ddp)
        for _ in range(2):
            step()
        before_s, before = time.process_time(), thread_times()
        times = [seconds(step) for _ in range(options.times)]
        cpu_s, after = (time.process_time() - before_s) / options.times, thread_times()
        with ddp.no_sync():
            alone = statistics.median(seconds(step) for _ in range(5))
        median = statistics.median(times)
        plain = median if plain is None else plain
        if options.rank == 0:
            gain = f"{plain / median:.1f}"
            cells = f"{median:.3f} | {median - alone:.3f} | {cpu_s:.3f} | {gain}"
            print(f"| {hook} | {cells} |", flush=True)
            if options.by_thread:
                print(difference(before, after, options.times), flush=True)
    dist.destroy_process_group()


def backward(model: nn.Module) -> None:
    """Runs a backward pass, as in a loop of training: gradients of the step before are freed."""
    model.zero_grad()
    model().backward()


def seconds(work: object) -> float:
    """Measures the seconds of an operation that all ranks start at the same time."""
    dist.barrier()
    started = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - started


def gradient_of(network: str, rank: int) -> dict[str, Tensor]:
    """Returns the gradient of a new model for random images, different on each rank."""
    torch.manual_seed(0)
    model = build_model(network, (3, 32, 32), 10)
    torch.manual_seed(1 + rank)
    images, labels = torch.randn(IMAGES, 3, 32, 32), torch.randint(10, (IMAGES,))
    cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


if __name__ == "__main__":
    main()
