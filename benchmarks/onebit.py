"""Accuracy and bytes of 1-bit Adam, 0/1 Adam and 1-bit LAMB beside Adam and LAMB, on the digits.

python benchmarks/onebit.py benchmarks/records/onebit.jsonl --seeds 2
python benchmarks/onebit.py benchmarks/records/onebit.jsonl --table docs/optimizers.md

Four ranks as threads train LeNet with 16 images each: 160 steps, of which 32 are dense. Adam and
LAMB send uncompressed gradients. Results are lines of JSON: an optimizer, a seed, the accuracy on
test images, and the MB that a rank sends in all steps. What has a result is not run again. The
table has means over seeds.
"""

import argparse
import json
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.functional import cross_entropy

import atomo
from atomo.exchange.collectives.direct import Direct
from atomo.transports import network
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

RANKS: Final = 4
BATCH: Final = 16
STEPS: Final = 160
FREEZE: Final = 32
RATE: Final = 1e-3
BEGIN, END = "<!-- onebit -->\n", "<!-- end of onebit -->\n"
Make = Callable[[Any, Direct], Any]


def makers() -> dict[str, Make]:
    """Returns the optimizers by name."""
    return {
        "Adam, dense": lambda model, ranks: atomo.wrap_optimizer(
            torch.optim.Adam(model.parameters(), lr=RATE), model, "sgd", collective=ranks
        ),
        "`onebit_adam`": lambda model, ranks: atomo.onebit_adam(
            model.parameters(), RATE, freeze_step=FREEZE, collective=ranks
        ),
        "`zero_one_adam`": lambda model, ranks: atomo.zero_one_adam(
            model.parameters(),
            RATE,
            var_freeze_step=FREEZE,
            local_step_scaler=64,
            local_step_clipper=4,
            collective=ranks,
        ),
        "LAMB, dense": lambda model, ranks: atomo.onebit_lamb(
            model.parameters(), RATE, freeze_step=STEPS, collective=ranks
        ),
        "`onebit_lamb`": lambda model, ranks: atomo.onebit_lamb(
            model.parameters(), RATE, freeze_step=FREEZE, collective=ranks
        ),
    }


def main() -> None:
    """Runs what has no result yet, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--table", type=Path, help="the page that gets the table")
    options = parser.parse_args()
    results = read(options.results)
    if options.table:
        before, _, after = options.table.read_text().partition(BEGIN)
        options.table.write_text(before + BEGIN + table(results) + END + after.partition(END)[2])
        return
    torch.set_num_threads(1)
    data = load_dataset("Digits", options.data_dir)
    for seed in range(options.seeds):
        for name, make in makers().items():
            if (name, seed) in results:
                continue
            accuracy, sent = train(make, data, seed)
            record = {"optimizer": name, "seed": seed, "right": accuracy, "sent_mb": sent}
            with options.results.open("a") as out:
                out.write(json.dumps(record) + "\n")


def read(file: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Returns the accuracy and the MB by optimizer and seed; empty if there is no file."""
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines]
    return {(row["optimizer"], row["seed"]): (row["right"], row["sent_mb"]) for row in records}


def table(results: dict[tuple[str, int], tuple[float, float]]) -> str:
    """Returns a row for each optimizer: the mean over seeds, and the seeds."""
    rows = defaultdict[str, list[tuple[float, float]]](list)
    for (name, _), result in results.items():
        rows[name].append(result)
    lines = ["| optimizer | test images right, % | MB sent by a rank |", "| --- | --- | --- |"]
    for name in makers():
        if runs := rows[name]:
            accuracy, sent = (statistics.mean(column) for column in zip(*runs, strict=True))
            each = ", ".join(f"{right:.1f}" for right, _ in runs)
            lines.append(f"| {name} | {accuracy:.1f} ({each}) | {sent:.1f} |")
    return "\n".join(lines) + "\n"


def train(make: Make, data: Any, seed: int) -> tuple[float, float]:
    """Returns the accuracy in percent, and the MB that rank 0 sends."""
    transports = network(RANKS)
    models = []
    for _ in range(RANKS):
        torch.manual_seed(seed)
        models.append(build_model("LeNet", data.input_shape, data.classes))
    optimizers: list[Any] = [None] * RANKS

    def body(rank: int) -> None:
        model = models[rank]
        optimizer = optimizers[rank] = make(model, Direct(transports[rank], 300.0))
        generator = torch.Generator().manual_seed(seed)  # each rank takes its share of a batch
        for _ in range(STEPS):
            drawn = torch.randint(len(data.train), (RANKS * BATCH,), generator=generator)
            images, labels = data.train.batch(drawn[rank::RANKS])
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(images), labels))
            optimizer.step()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    images, labels = data.test.batch(torch.arange(len(data.test)))
    with torch.no_grad():
        right = (models[0](images).argmax(1) == labels).float().mean()
    sent = transports[0].sent_bytes / 1e6
    return round(100 * float(right), 2), round(sent, 1)


if __name__ == "__main__":
    main()
