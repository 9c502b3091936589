"""A training with random faults, compared with the same training without faults.

    .venv/bin/python benchmarks/chaos.py --minutes 30 --json chaos.json
    .venv/bin/python benchmarks/chaos.py --minutes 2 --workers 3 --hosts 3 --faults kill,stop,master

The training runs over a virtual cluster (`tools/virtual_cluster.py`). The training without faults
runs on the same hosts before and after it, for `--calm` minutes each time; or, with `--beside`, at
the same time on another cluster, which is fair on a busy machine but halves the cores of both.

Faults are drawn from `--seed`, one after the other, each after the recovery from the previous one,
with pauses such that there are `--least` faults. Goodput is the number of new steps over the steps
of the training without faults in the same time: in total; without the time of restarts and repeated
steps; and without the time of faults of links and disks as well. The cost of a fault is the longest
time between two steps after it, minus the median. The verdict at the end compares these figures
with their goals.

Ends with 1 if a training hung or ended by itself, if gradients are not accounted for, if steps are
missing, if a process is left, or if the accuracies differ: never for slowness. A full disk needs
root, to mount a small file system; without root this fault is left out.
"""

import argparse
import contextlib
import json
import math
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path

from parts.chaos.calm import Calm, learnt, waited
from parts.chaos.faults import FAULTS, Scene, drawn, make_garbage_folder
from parts.chaos.goals import table
from parts.chaos.job import Cluster, Training
from parts.chaos.verdict import Done, Result, closed, judged

OPTIONS = ["--network=LeNet", "--dataset=Digits", "--batch-size=16", "--lr=0.01", "--code=svd"]
OPTIONS += ["--checkpoint-every=10", "--keep-checkpoints=3", "--eval-freq=1000000"]
OPTIONS += ["--step-timeout=1"]  # the wait for a worker that hangs, which is then killed
DISK_BYTES = 256_000_000
SETTLED = 3  # steps after a fault until it counts as overcome
REPORT_WAIT = 3.0  # times the --timeout: the wait for a line about a fault
LINES = 40  # of the training's output, shown if a check fails
HANG_S = 180.0  # in addition to --timeout: longer than any start, on a loaded machine as well
LEAST_A_MINUTE = 4.2
LEAST_PAUSE_S = 0.5
POLL_S = 0.02


def main() -> int:
    """Runs the benchmark; returns 1 if a check fails."""
    options = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clusters are removed then as well
    # A shell starts background processes with SIGINT ignored. Trainings would inherit that, and
    # SIGINT ends them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        disk = stack.enter_context(small_disk(folder))
        names = [name for name in options.faults if disk or name != "full disk"]
        if names != options.faults:
            print("full disk is left out: a file system cannot be mounted here", flush=True)
        scene, result = train_both(stack, folder, disk, names, options)
    if result.wrong:
        print("\n".join(scene.training.output[-LINES:]))
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1))
    return 1 if result.wrong else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument(
        "--least", type=int, help=f"minimum number of faults; default: {LEAST_A_MINUTE:g} a minute"
    )
    parser.add_argument("--every", type=float, help="mean seconds of pause before each fault")
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="--timeout of the training, seconds"
    )
    parser.add_argument("--faults", type=lambda text: text.split(","), default=list(FAULTS))
    parser.add_argument("--count", type=int, help="maximum number of faults; default: no limit")
    parser.add_argument(
        "--calm", type=float, default=1.5, help="minutes without faults, before and after"
    )
    parser.add_argument(
        "--beside", action="store_true", help="run the training without faults in parallel"
    )
    parser.add_argument(
        "--least-steps", type=int, default=400, help="minimum steps of both trainings"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--output", type=Path, help="file for the output of the training")
    parser.add_argument("--train", action="append", default=[], help="an option of atomo train")
    options = parser.parse_args()
    if unknown := {*options.faults} - {*FAULTS}:
        parser.error(f"--faults {sorted(unknown)}: known are {', '.join(FAULTS)}")
    options.least = options.least or math.ceil(LEAST_A_MINUTE * options.minutes)
    return options


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mounts a small file system and yields its folder; None if this user may not mount one."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def cluster_of(folder: Path, hosts: int) -> Iterator[Cluster]:
    """Yields a cluster; removes the cluster and its processes at the end."""
    cluster = Cluster(folder, hosts)
    try:
        yield cluster
    finally:
        cluster.does("down", "--purge")


def train_both(
    stack: contextlib.ExitStack,
    folder: Path,
    disk: Path | None,
    names: Sequence[str],
    options: argparse.Namespace,
) -> tuple[Scene, Result]:
    """Runs one training with faults and one without; returns the scene and the result."""
    cluster = stack.enter_context(cluster_of(folder / "harmed", options.hosts))
    calm_cluster = cluster
    if options.beside:
        calm_cluster = stack.enter_context(cluster_of(folder / "calm", options.hosts))
    words = [*OPTIONS, f"--n={options.workers + 1}", f"--timeout={options.timeout:g}"]
    words += [f"--spares={options.spares}", *options.train]
    limit_s = HANG_S + 3 * options.timeout
    calm = Calm(
        lambda: Training(calm_cluster, folder / "calm-run", words),
        options.calm,
        beside=options.beside,
    )
    wrong = calm.begin(limit_s)
    garbage = make_garbage_folder(folder / "garbage")
    training = Training(cluster, (disk or folder) / "run", words, garbage)
    scene = Scene(cluster, training, disk, garbage, options.workers)
    result = harmed(scene, calm, names, wrong, limit_s, options)
    if options.output:
        options.output.write_text("\n".join(training.output))
    return scene, result


def harmed(
    scene: Scene,
    calm: Calm,
    names: Sequence[str],
    wrong: list[str],
    limit_s: float,
    options: argparse.Namespace,
) -> Result:
    """Injects faults until the time is over, and checks the run."""
    training, wrong = scene.training, [*wrong]
    wrong += waited(lambda: len(training.steps) > SETTLED, training, limit_s)
    start = time.monotonic()
    end, pause, done = start + 60 * options.minutes, random.Random(options.seed), list[Done]()
    for name, draw in islice(drawn(options.seed, names), options.count):
        due = time.monotonic() + pause.expovariate(1 / quiet_s(options, start, len(done), done))
        while time.monotonic() < min(due, end):
            time.sleep(POLL_S)
        if wrong or time.monotonic() >= end:
            break
        fault, wrong = harm(scene, name, draw, limit_s, REPORT_WAIT * options.timeout)
        done.append(fault)
        line = f"{fault.at - start:7.1f} s  {name:10} {fault.cost_s:6.2f} s"
        ends = "  restarted" * fault.restarted + "  no line reports it" * (not fault.reported)
        print(line + ends, flush=True)
    over = time.monotonic()
    # Accuracies can be compared only after enough steps.
    wrong = wrong or learnt(training, options.least_steps, limit_s)
    wrong += closed(training, limit_s)
    wrong += calm.finish(options.least_steps, limit_s)
    return judged(training, calm, (start, over), done, wrong)


def quiet_s(options: argparse.Namespace, start: float, count: int, done: Sequence[Done]) -> float:
    """Returns the mean time before the next fault such that there are enough faults."""
    if options.every is not None:
        return float(options.every)
    left_s: float = start + 60 * options.minutes - time.monotonic()
    took_s = statistics.fmean([fault.overcome - fault.at for fault in done] or [0.0])
    to_come: int = max(1, options.least - count)
    return max(LEAST_PAUSE_S, left_s / to_come - took_s)


def harm(
    scene: Scene, name: str, draw: float, limit_s: float, report_wait_s: float
) -> tuple[Done, list[str]]:
    """Injects one fault, undoes it, and waits until the job has recovered."""
    fault, training = FAULTS[name], scene.training
    median, furthest, lines = typical(training), training.furthest(), len(training.output)
    at, restarts = time.monotonic(), len(training.restarts)
    undo = fault.do(scene, draw)

    def reported() -> bool:
        return not fault.report_text or any(
            fault.report_text in line for line in training.output[lines:]
        )

    def overcome() -> bool:
        again = training.restarts[restarts:]
        since = again[-1] if again else at
        steps = len(training.after(since)) >= SETTLED
        if fault.restarts or again:
            return bool(again) and steps and training.furthest() > furthest
        return steps and (reported() or time.monotonic() > at + report_wait_s)

    if undo is not None:
        finish = at + fault.lasts_s
        while time.monotonic() < finish:
            time.sleep(POLL_S)
        undo()
    wrong = waited(overcome, training, limit_s)
    seen = [at, *training.after(at)]
    gap_s = max((b - a for a, b in pairwise(seen)), default=0.0)
    again = len(training.restarts) > restarts
    outcome = Done(name, at, time.monotonic(), max(0.0, gap_s - median), again, reported())
    return outcome, [f"{name}: {failure}" for failure in wrong]


def typical(training: Training) -> float:
    """Returns the median seconds between two of the last steps."""
    times = training.steps[-50:]
    return statistics.median([b - a for a, b in pairwise(times)] or [0.0])


if __name__ == "__main__":
    raise SystemExit(main())
