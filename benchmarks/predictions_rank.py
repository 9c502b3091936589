"""One rank of `predictions.py`: probes its job, then predicts and measures cells.

All ranks compute the same predictions, and take the same number of steps; rank 0 writes a line for
each cell.
"""

import argparse
import gc
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import torch

from atomo.codecs import Law, make_codec
from atomo.config.comm_rules import has_master
from atomo.config.comm_types import (
    PARAMETER_SERVER,
    settings_of_stored,
    stored_name,
    stored_settings,
)
from atomo.config.settings import Settings
from atomo.core.process.allocator import keep_freed_memory
from atomo.exchange import Direct
from atomo.launch.resolve import canonical_settings
from atomo.planning import Costs, HostModel, Link, Prediction, Profile, Scenario, predict
from atomo.planning.probe import (
    SynchronizedTimer,
    measure_links,
    measure_profile,
    measure_rank_costs,
    measure_slowing,
)
from atomo.planning.probe.probe_file import costs_from
from atomo.training.job.job import Job, make_job
from atomo.training.loop.master_stepper import MasterStepper
from atomo.training.loop.replica import TrainingReplica
from atomo.training.loop.worker import Worker
from atomo.training.plans.job_probe import JobDryRun
from atomo.transports import Transport, connect

# Data without a download, and small batches, so that passes do not hide the exchange.
WORK: Final[Mapping[str, Mapping[str, Any]]] = {
    "LeNet": {"dataset": "Digits", "batch_size": 32},
    "ResNet20": {"dataset": "Noise", "image_size": 32, "batch_size": 8},
    "ResNet18": {"dataset": "Noise", "image_size": 32, "batch_size": 4},
}
LAYER: Final = "layer"
CPU: Final = torch.device("cpu")
WARM_UP: Final = 2  # steps without timing
LEAST, MOST = 3, 15  # steps with timing
TIMEOUT_S: Final = 900.0
PROBED: Final = 6  # passes of a probe


@dataclass(frozen=True)
class Cell:
    """The settings of one measurement."""

    network: str
    rate: str
    code: str
    comm_type: str


def main() -> None:
    """Measures every cell without a result in the folder."""
    options = parse()
    transport = connect("mpi")
    keep_freed_memory()
    torch.set_num_threads(1)
    rank = Rank(options, transport)
    for network in options.networks:
        rank.measure(network)
    transport.drain(TIMEOUT_S)


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rate", required=True)
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--codes", nargs="+", required=True)
    parser.add_argument("--longest", type=float, required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--times", type=int, required=True)
    return parser.parse_args()


class Rank:
    """One rank of the measuring job."""

    def __init__(self, options: argparse.Namespace, transport: Transport) -> None:
        self._options, self._transport = options, transport
        self._timer = SynchronizedTimer(Direct(transport, TIMEOUT_S))
        self._links = measure_links(self._timer, transport, TIMEOUT_S)
        self._say({name: asdict(link) for name, link in self._links.items()})
        self._file = options.out / "cells.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        rows = [json.loads(line) for line in lines]
        cells = [settings_of_stored(row) for row in rows]
        self._done = {Cell(*(cell[f.name] for f in fields(Cell))) for cell in cells}
        self._coded = options.out / "costs"
        self._timer.barrier()  # no rank writes before all have read

    def measure(self, network: str) -> None:
        """Measures all missing cells of a network."""
        missing = [cell for cell in self._cells(network) if cell not in self._done]
        for comm_types in ((PARAMETER_SERVER,), ("Allgather", "Allreduce")):
            cells = [cell for cell in missing if cell.comm_type in comm_types]
            if cells:
                base = settings_of(cells[0], self._transport.size, fusion=LAYER, code="sgd")
                job = make_job(base, self._transport.size)
                dry_run = JobDryRun(job, self._transport.rank, CPU)
                profile = measure_profile(dry_run, self._timer, PROBED)
                slowing = measure_slowing(dry_run, self._timer, CPU, PROBED)
                self._say(f"{network} {base.comm_type}: slowing {slowing:.2f}")
                for cell in cells:
                    self._measure(cell, profile, HostModel(1.0, slowing))

    def _cells(self, network: str) -> Iterator[Cell]:
        for code in self._options.codes:
            for comm_type in (PARAMETER_SERVER, "Allgather", "Allreduce"):
                if comm_type != "Allreduce" or Law.SUMMABLE in make_codec(code).laws:
                    yield Cell(network, self._options.rate, code, comm_type)

    def _measure(self, cell: Cell, profile: Profile, host_model: HostModel) -> None:
        gc.collect()
        settings = settings_of(cell, self._transport.size)
        costs = self._costs(cell, settings, profile)
        down = "updates" if settings.workers * costs.sent_bytes < sum(profile.sizes) else "weights"
        if cell.comm_type == PARAMETER_SERVER:
            settings = replace(settings, down=down)
        link = Link(1.0, 0.0)
        scenario = Scenario(profile, settings.workers, link, host_model, self._links)
        predicted = predict(scenario, costs, cell.comm_type, settings.grouping)
        if predicted.step_s > self._options.longest:
            return
        steps = math.ceil(self._options.budget / predicted.step_s)
        steps = max(LEAST, min(MOST, steps))
        job = make_job(replace(settings, max_steps=WARM_UP + steps), self._transport.size)
        self._timer.barrier()
        times, parts = (serve if has_master(cell.comm_type) else replicate)(job, self._transport)
        self._write(cell, predicted, times[WARM_UP:], scenario, costs, parts, down)

    def _costs(self, cell: Cell, settings: Settings, profile: Profile) -> Costs:
        """Measures the costs of a cell once for all rates of the links, and stores them."""
        file = self._coded / f"{cell.network} {cell.code} {stored_name(cell.comm_type)}.json"
        if file.exists():
            return costs_from(json.loads(file.read_text()), len(profile.sizes))
        costs = self._measure_costs(cell, settings, profile)
        if self._transport.rank == 0:
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(asdict(costs)))
        return costs

    def _measure_costs(self, cell: Cell, settings: Settings, profile: Profile) -> Costs:
        master = has_master(cell.comm_type)
        return measure_rank_costs(
            self._timer,
            make_codec(cell.code),
            "Allgather" if master else cell.comm_type,
            profile,
            self._options.times,
            settings.compression,
            master=master,
        )

    def _write(
        self,
        cell: Cell,
        predicted: Prediction,
        times: list[float],
        scenario: Scenario,
        costs: Costs,
        parts: dict[str, float],
        down: str,
    ) -> None:
        if self._transport.rank:
            return
        measured_s = statistics.median(times)
        row = stored_settings(asdict(cell)) | {
            "predicted_s": predicted.step_s,
            "measured_s": measured_s,
            "steps": len(times),
            "fastest_s": min(times),
            "slowest_s": max(times),
            "messages": predicted.messages,
            "sent_bytes": costs.sent_bytes,
            "down": down if cell.comm_type == PARAMETER_SERVER else "",
            "compute_s": scenario.compute_s,
            "link_s": predicted.link_s,
            "codec_s": predicted.codec_s,
            "update_s": scenario.profile.update_s,
            "measured": parts,
        }
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._say(
            f"{cell.network} {cell.rate} {cell.code} {cell.comm_type}: predicted "
            f"{1e3 * predicted.step_s:.1f} ms, measured {1e3 * measured_s:.1f} ms, "
            f"{predicted.step_s / measured_s - 1:+.0%}"
        )

    def _say(self, message: object) -> None:
        if self._transport.rank == 0:
            print(message, flush=True)


def settings_of(cell: Cell, ranks: int, **overrides: Any) -> Settings:
    """Returns the settings of a run of a cell."""
    defaults = {
        "n": ranks, "network": cell.network, "code": cell.code, "comm_type": cell.comm_type,
        "threads": 1, "timeout": TIMEOUT_S, "lr": 1e-4, "evaluator": "none", "train_dir": "unused",
        "resume": "never",
    }  # fmt: skip
    return canonical_settings(Settings(**{**defaults, **WORK[cell.network], **overrides}))


def replicate(job: Job, transport: Transport) -> tuple[list[float], dict[str, float]]:
    """Trains without a master; returns the seconds of each step, and the medians of its parts."""
    replica = TrainingReplica(job, transport, CPU)
    results = [replica.take_step() for _ in range(job.last_step)]
    reports = [result.report for result in results[WARM_UP:]]
    own_reports = [result.exchanged.reports[transport.rank] for result in results[WARM_UP:]]
    parts = {
        "compute_s": statistics.median(result.compute_s for result in reports),
        "encode_s": statistics.median(result.encode_s for result in own_reports),
        "wait_s": statistics.median(result.wait_s for result in own_reports),
        "decode_s": statistics.median(result.exchanged.decode_s for result in results[WARM_UP:]),
        "exchange_s": statistics.median(
            result.exchanged.exchange_s for result in results[WARM_UP:]
        ),
        "update_s": statistics.median(result.update_s for result in results[WARM_UP:]),
    }
    return [result.step_s for result in results], parts


def serve(job: Job, transport: Transport) -> tuple[list[float], dict[str, float]]:
    """Trains with a master; returns the figures of `replicate` on the master, none on a worker."""
    if transport.rank:
        Worker(job, transport, CPU).run()
        return [], {}
    return lead(job, transport)


def lead(job: Job, transport: Transport) -> tuple[list[float], dict[str, float]]:
    """Runs the master without a folder; returns the seconds of each step, and of its parts."""
    stepper = MasterStepper(job, transport, CPU, trial=True)
    stepper.server.check_initial_weights(stepper.weights.flat)
    results = [stepper.take_step(1 + step) for step in range(job.last_step)]
    stepper.server.stop()
    reports = [result for step in results[WARM_UP:] for result in step.reports.values()]
    parts = {
        name: statistics.median(getattr(result, name) for result in reports)
        for name in ("compute_s", "encode_s", "send_s", "wait_s", "follow_s")
    }
    parts["decode_s"] = statistics.mean(result.decode_s for result in results[WARM_UP:])
    parts["update_s"] = statistics.median(result.update_s for result in results[WARM_UP:])
    return [result.step_s for result in results], parts


if __name__ == "__main__":
    main()
