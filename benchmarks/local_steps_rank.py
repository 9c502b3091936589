"""One rank of local_steps.py: trains for its curves, or takes steps for its times.

Reads a plan, a file of JSON lines with one run each, and appends records to a file of JSON lines.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.distributed as dist

from atomo.core.randomness import derive
from atomo.errors import Diverged
from ddp_train import add_group_options, join
from parts.local_steps.methods import METHODS, Method, Trainer, make_trainer
from parts.local_steps.workloads import WORKLOADS, Workload

Run = Mapping[str, Any]
OF_PLAN: Final = ("methods", "rounds", "steps")
"""Fields of a timed run that its records lack."""
WINDOW: Final = 4  # local steps that are timed together


def main() -> None:
    """Joins the process group, and carries out the plan."""
    options = parse()
    join(options)
    try:
        carry_out(options)
    finally:
        dist.destroy_process_group()


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_group_options(parser)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--peers", type=Path)
    return parser.parse_args()


def carry_out(options: argparse.Namespace) -> None:
    """Carries out the runs of the plan in turn; rank 0 appends their records."""
    opened: dict[str, Workload] = {}
    for line in options.plan.read_text().splitlines():
        run = json.loads(line)
        name = run["workload"]
        if name not in opened:
            opened = {name: WORKLOADS[name](options.data_dir)}
        task = time_methods if "methods" in run else train
        for record in task(run, opened[name], options.peers):
            if not dist.get_rank():
                append(options.out, record)


def append(path: Path, record: Run) -> None:
    """Appends a record, and prints its head."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record)[:200], flush=True)


def method_of(run: Run) -> Method:
    """Returns the method of a run: one of the table by name, or one with its own fields."""
    return Method(**run["fields"]) if "fields" in run else METHODS[run["method"]]


def trainer_of(run: Run, method: Method, workload: Workload, peers: Path | None) -> Trainer:
    """Returns a new model in a method; all runs with a seed begin with the same weights."""
    torch.manual_seed(derive(run["seed"], "weights"))
    model = workload.build()
    return make_trainer(method, model, workload.optimizer(model, run["rate"]), peers)


def train(run: Run, workload: Workload, peers: Path | None) -> list[Run]:
    """Trains, and returns the record: the metric and the loss at each evaluation.

    The training ends at the target, but not before `least` steps.
    """
    method = method_of(run)
    trainer = trainer_of(run, method, workload, peers)
    points: list[list[float]] = []
    spent: list[float] = []
    started = time.perf_counter()
    for step in range(1, run["steps"] + 1):
        before = time.perf_counter()
        try:
            loss = take_step(trainer, run, workload, step)
        except Diverged:  # on all ranks
            break
        spent.append(time.perf_counter() - before)
        if step % workload.grid == 0 and step % method.every == 0:
            points.append([step, *evaluate(trainer, workload)])
            diverged = not all(map(math.isfinite, [loss, *points[-1]]))
            if diverged or (step >= run["least"] and workload.reached(points[-1][1])):
                break
    cost = {"sent_bytes": trainer.sent_bytes, "wall_s": round(time.perf_counter() - started, 1)}
    return [{**run, "points": points, **cost, **summary(spent, method.every)}]


def summary(spent: Sequence[float], every: int) -> Run:
    """Returns the seconds of all steps, and the medians of steps without and with an exchange."""
    exchanges = spent[every - 1 :: every]
    local = [seconds for number, seconds in enumerate(spent, 1) if number % every]
    return {
        "train_s": round(sum(spent), 2),
        "local_s": round(statistics.median(local), 5) if local else None,
        "exchange_s": round(statistics.median(exchanges), 5) if exchanges else None,
    }


def take_step(trainer: Trainer, run: Run, workload: Workload, step: int) -> float:
    """Takes a step of all ranks; returns the loss of this rank."""
    batch = workload.batch(step, dist.get_rank(), dist.get_world_size(), run["seed"])
    rate = run["rate"] * workload.factor(step, run["steps"])
    for group in trainer.inner.param_groups:
        group["lr"] = rate
    trainer.inner.zero_grad()
    loss = workload.loss(trainer.model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    trainer.step()
    return float(loss.detach())


def evaluate(trainer: Trainer, workload: Workload) -> tuple[float, float]:
    """Returns the metric and the loss on the test data, of which each rank takes a share."""
    with trainer.anchor():
        sums = workload.sums(trainer.model, dist.get_rank(), dist.get_world_size())
    dist.all_reduce(sums)
    return round(workload.metric(sums), 5), round(float(sums[0] / sums[2]), 5)


def time_methods(run: Run, workload: Workload, peers: Path | None) -> list[Run]:
    """Takes steps by all methods in turns; returns a record for each method.

    A method with local steps has rounds of `WINDOW` steps and one with an exchange here.
    """
    trainers, clocks = {}, {}
    for name in run["methods"]:
        method = replace(METHODS[name], every=WINDOW + 1 if METHODS[name].is_local else 1)
        trainers[name] = trainer_of(run, method, workload, peers)
        clocks[name] = Clock(run["interface"])
    for number in range(max(run["rounds"].values())):
        for name, trainer in trainers.items():
            if number < run["rounds"][name]:
                time_round(clocks[name], partial(take_step, trainer, run, workload), number, name)
    shared = {key: value for key, value in run.items() if key not in OF_PLAN}
    return [{**shared, "method": name, **clock.record()} for name, clock in clocks.items()]


def time_round(clock: "Clock", step: Callable[[int], object], number: int, name: str) -> None:
    """Times a round of a method; first rounds are not recorded."""
    # PyTorch's PowerSGD hook begins with dense steps.
    warm = 3 if "PowerSGD" in name else 1
    first = number * (WINDOW + 1) + 1
    if METHODS[name].is_local:
        local = clock.time(lambda: [step(first + part) for part in range(WINDOW)])
        if number >= warm:
            clock.local_s.append(local[0] / WINDOW)
    exchange = clock.time(lambda: step(first + WINDOW))
    if number >= warm:
        clock.exchanges.append(exchange)


@final
class Clock:
    """The seconds of steps, of the slowest rank, and the bytes that a rank sends."""

    def __init__(self, interface: str) -> None:
        self.local_s: list[float] = []
        self.exchanges: list[tuple[float, float]] = []
        self._interface = interface

    def time(self, steps: Callable[[], object]) -> tuple[float, float]:
        """Times steps, which all ranks begin together; returns the seconds and the bytes."""
        dist.barrier()
        before, started = sent(self._interface), time.perf_counter()
        steps()
        seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
        width = torch.tensor(float(sent(self._interface) - before), dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        dist.all_reduce(width)
        return float(seconds), float(width) / dist.get_world_size()

    def record(self) -> Run:
        """Returns the lists of seconds of a step without and with an exchange, and bytes."""
        return {
            "local_s": [round(seconds, 5) for seconds in self.local_s],
            "exchange_s": [round(seconds, 5) for seconds, _ in self.exchanges],
            "sent_bytes": [round(width) for _, width in self.exchanges],
        }


def sent(interface: str) -> int:
    """Returns the bytes that a network device has sent."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise SystemExit(f"there is no network device {interface}")


if __name__ == "__main__":
    main()
