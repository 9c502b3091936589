"""The published headlines: losses of compressed training as the papers train, on equal terms.

    python benchmarks/headlines.py images --data-dir data             # all epochs that are missing
    python benchmarks/headlines.py images --data-dir data --pieces 1  # one more epoch
    python benchmarks/headlines.py images --data-dir data --epochs 5  # shorter runs
    python benchmarks/headlines.py ddp --data-dir data --epochs 5     # PyTorch's PowerSGD hook
    python benchmarks/headlines.py characters                         # the transformer
    python benchmarks/headlines.py trials                             # its memory of topk
    python benchmarks/headlines.py times                              # seconds of its steps
    python benchmarks/headlines.py figures                            # tables and pictures

`images` is ResNet-20 on CIFAR-10, with two workers: threads of one process that train as ranks of
`atomo train` do. A piece is one epoch: it ends with a checkpoint in the folder of its run, and a
line in benchmarks/records/headlines.jsonl. A run that was cut continues from its last checkpoint,
and what has a record is not repeated. docs/headlines.md has the figures.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from parts.headlines.characters import (
    SEEDS,
    SHORT,
    TRANSFORMERS,
    TRIALS,
    time_codes,
    train_characters,
)
from parts.headlines.ddp import train_ddp
from parts.headlines.figures import write_figures
from parts.headlines.plan import DDP_POWER_SGD, DDP_RANK, EPOCHS, Run, plan
from parts.headlines.records import read, records_of
from parts.headlines.train import epoch_record, settings_of, train_epoch

ROOT: Final = Path(__file__).parent.parent
PARTS: Final = ("images", "ddp", "characters", "trials", "times", "figures")
RECORDS: Final = ROOT / "benchmarks" / "records" / "headlines.jsonl"


def main() -> None:
    """Trains what is missing, or writes the figures."""
    options = parse()
    if options.part == "figures":
        write_figures(read(options.records), ROOT / "docs")
        return
    pieces = {
        "images": epochs, "ddp": ddp_epochs, "characters": transformers, "trials": trials,
        "times": timings,
    }[options.part]  # fmt: skip
    for record in islice(pieces(options), options.pieces):
        line = json.dumps(record)
        with options.records.open("a") as out:
            out.write(line + "\n")
        print(line, flush=True)


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--pieces", type=int, help="maximum number; all if not given")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="length of the runs of images")
    parser.add_argument("--only", default="", help="comma-separated names of methods")
    parser.add_argument("--train-dir", type=Path, default=ROOT / "runs" / "headlines")
    parser.add_argument("--records", type=Path, default=RECORDS)
    return parser.parse_args()


def is_chosen(options: argparse.Namespace, name: str) -> bool:
    """True if a method is to run."""
    return not options.only or name in options.only.split(",")


def epochs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains one missing epoch after the other; yields their records."""
    records = read(options.records)
    for run in plan(options.epochs):
        if is_chosen(options, run.method):
            done = records_of(records, "images", run.method, run.seed)
            ours = [record for record in done if record["epochs"] == run.epochs]
            for recorded in range(len(ours), run.epochs):
                yield train(run, recorded + 1, options)


def train(run: Run, epoch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one epoch; returns its record."""
    folder = options.train_dir / f"{run.method}-{run.seed}-{run.epochs}"
    chosen = settings_of(run.words, options.data_dir, folder)
    train_epoch(chosen, epoch)
    named = {"task": "images", "method": run.method, "seed": run.seed, "epochs": run.epochs}
    return {**named, **epoch_record(chosen, epoch)}


def ddp_epochs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains PyTorch's PowerSGD in DDP, the first seed; yields the records of its epochs."""
    run = Run("dense", 1, options.epochs)
    chosen = settings_of(run.words, options.data_dir, options.train_dir / DDP_POWER_SGD)
    named = {"task": "images", "method": DDP_POWER_SGD, "seed": run.seed, "epochs": run.epochs}
    yield from ({**named, **record} for record in train_ddp(chosen, DDP_RANK))


def transformers(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains the missing transformers; yields their records."""
    records = read(options.records)
    for seed in SEEDS:
        for name in TRANSFORMERS:
            if is_chosen(options, name) and not records_of(records, "characters", name, seed):
                yield {"task": "characters", **train_characters(name, seed)}


def trials(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains the missing trials of the transformer; yields their records."""
    records = read(options.records)
    for name in TRIALS:
        if is_chosen(options, name) and not records_of(records, "trials", name, 1):
            yield {"task": "trials", **train_characters(name, 1)}


def timings(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times the steps of all transformers in turns; yields their records."""
    timed = (name for name in TRANSFORMERS if name not in (SHORT, "topk-residual"))
    names = [name for name in timed if is_chosen(options, name)]
    yield from ({"task": "times", **record} for record in time_codes(names))


if __name__ == "__main__":
    main()
