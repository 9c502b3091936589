"""Faults to inject into a training, and their ends."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from atomo.training.checkpoints.index import steps
from atomo.training.checkpoints.manifest import manifest_name
from parts.chaos.job import Cluster, Training

__all__ = ["FAULTS", "Fault", "Scene", "drawn", "make_garbage_folder"]

NARROW, WIDE = "20mbit", "1gbit"


@final
@dataclass(frozen=True)
class Scene:
    """The job and the hosts that faults are injected into."""

    cluster: Cluster
    training: Training
    disk: Path | None
    """Small file system with only the run; None: the run is on a shared file system."""
    garbage: Path
    """Folder of requests. A worker sends one bad frame if a file with the number of its rank is in
    the folder; the file names the kind of fault.
    """
    workers: int
    """Number of workers at the start; higher ranks are spares."""


Undo = Callable[[], None]
Do = Callable[[Scene, float], Undo | None]


@final
@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    do: Do
    """Injects the fault into a scene, at a target that a number from 0 to 1 selects; may return a
    function that ends the fault.
    """
    weight: float  # higher => more frequent
    restarts: bool = False  # True if the job must restart
    lasts_s: float = 0.0  # seconds until the fault ends
    of_process: bool = False  # True for faults of processes; False: of links, disks or the job
    report_text: str = ""  # text of the line that reports the fault


def drawn(seed: int, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yields faults without end, each with a number that selects the target.

    The same seed yields the same faults.
    """
    chance = random.Random(seed)
    weights = [FAULTS[name].weight for name in names]
    while True:
        yield chance.choices(names, weights)[0], chance.random()


def worker(scene: Scene, draw: float, *, computes: bool = False) -> tuple[int, int]:
    """Returns the rank and process of a live worker; (0, 0) if there is none.

    With `computes`, the worker is no spare if there is any other.
    """
    ranks = sorted(pair for pair in scene.training.ranks().items() if pair[0])
    first = [pair for pair in ranks if pair[0] <= scene.workers]
    chosen = first if computes and first else ranks
    return chosen[int(draw * len(chosen))] if chosen else (0, 0)


def killed(scene: Scene, draw: float) -> None:
    send(worker(scene, draw)[1], signal.SIGKILL)


def stopped(scene: Scene, draw: float) -> None:
    """Stops the process of a worker that is no spare."""
    send(worker(scene, draw, computes=True)[1], signal.SIGSTOP)


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        if pid:
            os.kill(pid, number)


def master(scene: Scene, draw: float) -> None:
    send(scene.training.ranks().get(0, 0), signal.SIGKILL)


def torn(scene: Scene, draw: float) -> None:
    """Truncates the newest checkpoint, and kills the master."""
    written = steps(scene.training.folder)
    if len(written) > 1:
        stem = manifest_name(written[-1]).removesuffix(".json")
        for path in scene.training.folder.glob(f"{stem}*.safetensors"):
            os.truncate(path, path.stat().st_size // 2)
    master(scene, draw)


def host(scene: Scene, draw: float) -> str:
    """Returns a host other than the launcher's, with ranks if there is any such host.

    A host that did not answer at a restart may have no ranks, and a fault has no effect there.
    """
    hosts = scene.cluster.hosts[1:]
    hosts = sorted(scene.training.hosts().intersection(hosts)) or hosts
    return hosts[int(draw * len(hosts))]


def cut(scene: Scene, draw: float) -> Undo:
    name = host(scene, draw)
    scene.cluster.does("partition", name)
    return lambda: scene.cluster.does("heal", name)


def throttle(scene: Scene, draw: float) -> Undo:
    name = host(scene, draw)
    scene.cluster.does("throttle", name, NARROW)
    return lambda: scene.cluster.does("throttle", name, WIDE)


def fill(scene: Scene, draw: float) -> Undo:
    """Fills the file system of the run."""
    if scene.disk is None:
        return lambda: None
    path = scene.disk / "filler"
    # Not buffered: on a full disk `close` would write the rest of the buffer again.
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65536))
    return path.unlink


def garbage(lies: Sequence[str]) -> Do:
    def do(scene: Scene, draw: float) -> None:
        lie = lies[int(97 * draw) % len(lies)]
        beside = scene.garbage / "new"
        beside.write_text(lie)
        beside.rename(scene.garbage / str(worker(scene, draw, computes=True)[0]))

    return do


GONE, REFUSED = "is gone", "is refused"
FAULTS: dict[str, Fault] = {
    "kill": Fault(killed, 28, of_process=True, report_text=GONE),
    "stop": Fault(stopped, 8, of_process=True, report_text=GONE),
    "garbage": Fault(
        garbage(["flipped", "cut", "stale"]), 11, of_process=True, report_text=REFUSED
    ),
    # A late frame is not checked, and no line reports it.
    "replay": Fault(garbage(["twice"]), 3, of_process=True),
    "throttle": Fault(throttle, 15, lasts_s=5.0),
    "blip": Fault(cut, 12, lasts_s=1.5),
    "full disk": Fault(fill, 10, lasts_s=5.0, report_text="storage:"),
    "partition": Fault(cut, 5, restarts=True, lasts_s=12.0),
    "master": Fault(master, 5, restarts=True),
    "torn": Fault(torn, 3, restarts=True, report_text="is left out"),
}

GARBAGE = """
import os

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
if rank != "0":
    from atomo.transports.mpi.transport import MpiTransport

    trigger, plain, before = {folder!r} + "/" + rank, MpiTransport.send, []

    def flipped(frame):
        other = frame.copy()
        other[other.size // 2] ^= 255
        return [other]

    lies = {{
        "flipped": flipped,
        "cut": lambda frame: [frame[: frame.size // 2].copy()],
        "twice": lambda frame: [frame, frame.copy()],
        "stale": lambda frame: [before[0]] if before else flipped(frame),
    }}

    def send(self, to, data, what):
        frames = [data]
        if to == 0 and data.size > {least}:  # a gradient or a state, not a report
            if os.path.exists(trigger):
                with open(trigger) as file:
                    frames = lies[file.read()](data)
                os.unlink(trigger)
            before[:] = [data.copy()]
        for frame in frames:
            plain(self, to, frame, what)

    MpiTransport.send = send
"""
"""Source that ranks run at start-up; the files in `folder` name the ranks that send bad frames."""
LEAST_BYTES = 1000


def make_garbage_folder(folder: Path) -> Path:
    """Makes a folder for the PYTHONPATH of ranks. A file put there makes a rank send bad frames."""
    folder.mkdir()
    source = GARBAGE.format(folder=str(folder), least=LEAST_BYTES)
    (folder / "sitecustomize.py").write_text(source)
    return folder
