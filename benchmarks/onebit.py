"""Accuracy and bytes of 1-bit Adam, 0/1 Adam and 1-bit LAMB beside Adam, on the digits.

    python benchmarks/onebit.py --seeds 2

Four ranks as threads train LeNet with 16 images each: 160 steps, of which 32 are dense. Adam sends
uncompressed gradients. The rows are means over seeds: the accuracy on test images, and the MB that
a rank sends in all steps.
"""

import argparse
import statistics
import threading
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
        "`onebit_lamb`": lambda model, ranks: atomo.onebit_lamb(
            model.parameters(), 10 * RATE, freeze_step=FREEZE, collective=ranks
        ),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset("Digits", options.data_dir)
    print("| optimizer | right, % | MB sent by a rank |\n|---|---|---|")
    for name, make in makers().items():
        runs = [train(make, data, seed) for seed in range(options.seeds)]
        accuracy, sent = (statistics.mean(column) for column in zip(*runs, strict=True))
        print(f"| {name} | {accuracy:.1f} | {sent:.1f} |", flush=True)


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
    return 100 * float(right), sent


if __name__ == "__main__":
    main()
