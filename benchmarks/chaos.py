"""A training to which faults are done all the time, and the same without any beside it.

    .venv/bin/python benchmarks/chaos.py --minutes 30 --json chaos.json
    .venv/bin/python benchmarks/chaos.py --minutes 2 --workers 3 --hosts 3 --faults kill,stop,master

Both have a virtual cluster of their own (`tools/virtual_cluster.py`), and share the cores. Faults
are drawn by `--seed`, one after the other, each once the one before is overcome. Goodput is the
number of new steps over that of the training without faults, in the same seconds; that of faults
which a job survives leaves out the seconds in which it starts again, which are told apart. What a
fault cost is the longest time between two steps after it, less the median.

Ends with 1 if a training hung or ended by itself, if gradients are not accounted for, if steps are
missing, if a process is left, or if the accuracy is not that of the other: never for being slow.
A full disk takes root, for a file system of its own; without it that fault is left out.
"""

import argparse
import contextlib
import json
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

from chaos_faults import FAULTS, Scene, drawn
from chaos_job import Cluster, Training
from chaos_verdict import Done, Result, judged, table

OPTIONS = ["--network=LeNet", "--dataset=Digits", "--batch-size=16", "--lr=0.01", "--code=svd"]
OPTIONS += ["--checkpoint-every=10", "--keep-checkpoints=3", "--eval-freq=1000000"]
DISK_BYTES = 256_000_000
SETTLED = 3  # steps after a fault until it counts as overcome
LINES = 40  # of what a training said, where something is wrong
HANG_S = 180.0  # beside the --timeout: more than any start takes, however loaded the machine
POLL_S = 0.02
GARBAGE = """
import os
if os.environ.get("OMPI_COMM_WORLD_RANK", "0") != "0":
    from atomo.transports.mpi.transport import MpiTransport
    trigger = {folder!r} + "/" + os.environ["OMPI_COMM_WORLD_RANK"]
    plain = MpiTransport.send
    def send(self, to, data, what):
        if to == 0 and data.size > 1000 and os.path.exists(trigger):
            os.unlink(trigger)
            data = data.copy()
            data[data.size // 2] ^= 255
        plain(self, to, data, what)
    MpiTransport.send = send
"""


def main() -> int:
    """Runs it; 1 where a promise was broken."""
    options = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clusters are taken away then too
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        disk = stack.enter_context(small_disk(folder))
        names = [name for name in options.faults if disk or name != "full disk"]
        if names != options.faults:
            print("full disk is left out: a file system cannot be mounted here", flush=True)
        trainings = stack.enter_context(both(folder, disk, options))
        result = harmed(*trainings, names, options)
    if result.wrong:
        print("\n".join(trainings[0].training.told[-LINES:]))
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
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--every", type=float, default=10.0, help="mean seconds between faults")
    parser.add_argument("--timeout", type=float, default=10.0, help="of the training, seconds")
    parser.add_argument("--faults", type=lambda text: text.split(","), default=list(FAULTS))
    parser.add_argument("--count", type=int, help="faults at most; as many as there is time for")
    parser.add_argument("--least-steps", type=int, default=400, help="of both, at the end")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="a file for the result")
    parser.add_argument("--train", nargs="*", default=[], help="further options of atomo train")
    return parser.parse_args()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of little room, where this user may mount one."""
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
def both(
    folder: Path, disk: Path | None, options: argparse.Namespace
) -> Iterator[tuple[Scene, Training]]:
    """The training that is harmed, and the one that is not; nothing is left of them."""
    garbage = folder / "garbage"
    garbage.mkdir()
    (garbage / "sitecustomize.py").write_text(GARBAGE.format(folder=str(garbage)))
    words = [*OPTIONS, f"--n={options.workers + 1}", f"--timeout={options.timeout:g}"]
    words += options.train
    clusters: list[Cluster] = []
    try:
        for name in ("harmed", "calm"):
            clusters.append(Cluster(folder / name, options.hosts))
        harmed = Training(clusters[0], (disk or folder) / "run", words, garbage)
        calm = Training(clusters[1], folder / "calm-run", words)
        yield Scene(clusters[0], harmed, disk, garbage), calm
    finally:
        for cluster in clusters:
            cluster.does("down", "--purge")


def harmed(
    scene: Scene, calm: Training, names: Sequence[str], options: argparse.Namespace
) -> Result:
    """Does faults until the time is over, and looks at what became of it."""
    training, limit_s = scene.training, HANG_S + 3 * options.timeout
    wrong = waited(lambda: bool(training.steps), training, limit_s)
    wrong += waited(lambda: bool(calm.steps), calm, limit_s)
    begun = time.monotonic()
    end, pause, done = begun + 60 * options.minutes, random.Random(options.seed), list[Done]()
    for name, whom in islice(drawn(options.seed, names), options.count):
        due = time.monotonic() + pause.expovariate(1 / options.every)
        while time.monotonic() < min(due, end):
            time.sleep(POLL_S)
        if wrong or time.monotonic() >= end:
            break
        one, wrong = harm(scene, name, whom, limit_s)
        done.append(one)
        told = f"{one.at - begun:7.1f} s  {name:10} {one.cost_s:6.2f} s"
        print(told + ("  restarted" if one.restarted else ""), flush=True)
    over = time.monotonic()
    for either in (training, calm):  # what has learnt has an accuracy that can be compared
        wrong += [] if wrong else learnt(either, options.least_steps, limit_s)
    return judged(training, calm, (begun, over), done, wrong, limit_s)


def learnt(training: Training, steps: int, limit_s: float) -> list[str]:
    """Waits until so many steps are taken; what was wrong, if no more come."""
    while (count := training.furthest()) < steps:
        if wrong := waited(partial(went_on, training, count), training, limit_s):
            return wrong
    return []


def went_on(training: Training, count: int) -> bool:
    return training.furthest() > count


def harm(scene: Scene, name: str, whom: float, limit_s: float) -> tuple[Done, list[str]]:
    """Does one fault, undoes it, and waits until it is overcome."""
    fault, training = FAULTS[name], scene.training
    median = typical(training)
    at, restarts = time.monotonic(), len(training.restarts)
    undo = fault.do(scene, whom)

    def overcome() -> bool:
        again = training.restarts[restarts:]
        since = again[-1] if again else at
        return (not fault.restarts or bool(again)) and len(training.after(since)) >= SETTLED

    if undo is not None:
        finish = at + fault.lasts_s
        while time.monotonic() < finish:
            time.sleep(POLL_S)
        undo()
    wrong = waited(overcome, training, limit_s)
    seen = [at, *training.after(at)]
    gap_s = max((b - a for a, b in pairwise(seen)), default=0.0)
    again = len(training.restarts) > restarts
    one = Done(name, at, time.monotonic(), max(0.0, gap_s - median), again)
    return one, [f"{name}: {what}" for what in wrong]


def typical(training: Training) -> float:
    """Seconds between two steps."""
    told = [at for at, _ in training.steps[-50:]]
    return statistics.median([b - a for a, b in pairwise(told)] or [0.0])


def waited(condition: Callable[[], bool], training: Training, limit_s: float) -> list[str]:
    """Waits; what was wrong, if it did not come true."""
    end = time.monotonic() + limit_s
    while not condition():
        if training.code is not None:
            return [f"the training ended by itself with code {training.code}"]
        if time.monotonic() > end:
            return [f"the training hung: no progress for {limit_s:g} s"]
        time.sleep(POLL_S)
    return []


if __name__ == "__main__":
    raise SystemExit(main())
