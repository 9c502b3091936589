r"""Bytes and seconds of a step of FSDP2 over slow links: dense, and with fsdp_hook(reduce_scatter).

    for n in 0 1 2 3; do
        python3 tools/virtual_cluster.py exec h$((n + 1)) .venv/bin/torchrun --nnodes 4 \
            --node-rank $n --master-addr h1 --master-port 29500 benchmarks/fsdp_scatter.py \
            --json benchmarks/records/fsdp_scatter.jsonl &
    done; wait

Every rank is a host. The bytes are those that a host's network sends for a step, medians over ranks
and steps; they contain the all-gather of weights, which stays dense. Rank 0 prints the table, and
appends a line for each code to the file.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import atomo

CODES: Final = ("dense", "sgd", "fp16", "qsgd(bits=4)", "topk(ratio=0.01)", "efsignsgd")
WIDTH: Final = 1024
LAYERS: Final = 4


def main() -> None:
    """Runs one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--codes", nargs="+", default=CODES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        entries = LAYERS * WIDTH * (WIDTH + 1)
        print(f"{dist.get_world_size()} hosts, {4 * entries / 1e6:.1f} MB of weights")
        print("| code | MB sent by a rank | of them gradients | seconds |\n|---|---|---|---|")
    weights = 0.0
    for code in options.codes:
        sent, seconds, weights = measure(code, options.steps, weights)
        if dist.get_rank() == 0:
            print(f"| {code} | {sent:.2f} | {sent - weights:.2f} | {seconds:.2f} |", flush=True)
            if options.json:
                append(options.json, code, options.steps, sent, weights, seconds)
    dist.destroy_process_group()


def append(file: Path, code: str, steps: int, sent: float, weights: float, seconds: float) -> None:
    """Appends the medians of a code to the records."""
    record = {
        "code": code,
        "ranks": dist.get_world_size(),
        "steps": steps,
        "sent_mb": round(sent, 3),
        "weights_mb": round(weights, 3),
        "seconds": round(seconds, 3),
    }
    with file.open("a") as out:
        out.write(json.dumps(record) + "\n")


def measure(code: str, steps: int, weights: float) -> tuple[float, float, float]:
    """Returns the medians of the MB and seconds of a step, and the MB of weights in it."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    if code != "dense":
        atomo.fsdp_hook(model, code, reduce_scatter=True)
    weights = weights or step_costs(model, steps, backward=False)[0]
    # The backward pass gathers the weights of all layers a second time.
    return (*step_costs(model, steps, backward=True), weights)


def step_costs(model: nn.Module, steps: int, *, backward: bool) -> tuple[float, float]:
    """Returns the medians over ranks and steps of the MB that a host sends, and the seconds."""
    costs = []
    for step in range(steps + 1):
        images = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
        dist.barrier()
        before, began = sent_bytes(), time.perf_counter()
        if backward:
            model(images).square().sum().backward()
        else:
            gather_weights(model, images)
        costs.append((time.perf_counter() - began, sent_bytes() - before))
    own = [statistics.median(column) for column in zip(*costs[1:], strict=True)]
    everyone = [torch.empty(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, torch.tensor(own, dtype=torch.float64))
    seconds, sent = torch.stack(everyone).median(0).values.tolist()
    return sent / 1e6, seconds


def gather_weights(model: nn.Module, images: torch.Tensor) -> None:
    """Gathers weights as often as a step with a backward pass does."""
    with torch.no_grad():
        for _ in range(2):
            model(images)


def sent_bytes() -> int:
    """Returns the bytes that the network of this host has sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    counts = {name.strip(): line.split() for name, _, line in (row.partition(":") for row in lines)}
    return sum(int(count[8]) for name, count in counts.items() if name != "lo")


if __name__ == "__main__":
    main()
