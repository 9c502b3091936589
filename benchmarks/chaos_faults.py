"""Faults that are done to a training, and undone."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from chaos_job import Cluster, Training

from atomo.training.checkpoints.index import steps
from atomo.training.checkpoints.manifest import manifest_name

__all__ = ["FAULTS", "Fault", "Scene", "drawn", "make_garbage_folder"]

NARROW, WIDE = "20mbit", "1gbit"


@final
@dataclass(frozen=True)
class Scene:
    """The job and the hosts that faults are injected into."""

    cluster: Cluster
    training: Training
    disk: Path | None
    """The file system that has the run alone, of little room; None: it lies with others."""
    garbage: Path
    """A worker sends one bad frame, when a file with its rank's number is in the folder. The file
    names the kind of fault.
    """
    workers: int
    """Ranks beyond these wait, at first."""


Undo = Callable[[], None]
Do = Callable[[Scene, float], Undo | None]


@final
@dataclass(frozen=True)
class Fault:
    """A way to harm a training."""

    do: Do
    """Gets where it happens, and a number from 0 to 1 that says to whom; may return how it ends."""
    weight: float  # higher => more frequent
    restarts: bool = False  # whether the job must start again
    lasts_s: float = 0.0  # until it is undone
    of_process: bool = False  # and not of links, disks or the job
    said: str = ""  # text of the line that reports the fault


def drawn(seed: int, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Faults without end, each with a number that says to whom: the same for the same seed."""
    chance = random.Random(seed)
    weights = [FAULTS[name].weight for name in names]
    while True:
        yield chance.choices(names, weights)[0], chance.random()


def worker(scene: Scene, whom: float, *, computes: bool = False) -> tuple[int, int]:
    """Returns a worker that lives, by rank and process; one that may wait as a spare, or one that
    surely computes, if there is any.
    """
    ranks = sorted(one for one in scene.training.ranks().items() if one[0])
    first = [one for one in ranks if one[0] <= scene.workers]
    chosen = first if computes and first else ranks
    return chosen[int(whom * len(chosen))] if chosen else (0, 0)


def killed(scene: Scene, whom: float) -> None:
    send(worker(scene, whom)[1], signal.SIGKILL)


def stopped(scene: Scene, whom: float) -> None:
    """Stops a process of a worker that computes."""
    send(worker(scene, whom, computes=True)[1], signal.SIGSTOP)


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        if pid:
            os.kill(pid, number)


def master(scene: Scene, whom: float) -> None:
    send(scene.training.ranks().get(0, 0), signal.SIGKILL)


def torn(scene: Scene, whom: float) -> None:
    """The newest checkpoint loses its end, and the job must go on from the one before."""
    found = steps(scene.training.folder)
    if len(found) > 1:
        stem = manifest_name(found[-1]).removesuffix(".json")
        for path in scene.training.folder.glob(f"{stem}*.safetensors"):
            os.truncate(path, path.stat().st_size // 2)
    master(scene, whom)


def host(scene: Scene, whom: float) -> str:
    """Returns a host that is not the launcher's, one with ranks if there is any: since a restart
    that it did not answer a host may have none, and nothing that is done to it is a fault then.
    """
    others = scene.cluster.hosts[1:]
    others = sorted(scene.training.hosts().intersection(others)) or others
    return others[int(whom * len(others))]


def cut(scene: Scene, whom: float) -> Undo:
    name = host(scene, whom)
    scene.cluster.does("partition", name)
    return lambda: scene.cluster.does("heal", name)


def throttle(scene: Scene, whom: float) -> Undo:
    name = host(scene, whom)
    scene.cluster.does("throttle", name, NARROW)
    return lambda: scene.cluster.does("throttle", name, WIDE)


def fill(scene: Scene, whom: float) -> Undo:
    """No room is left where the run writes."""
    if scene.disk is None:
        return lambda: None
    path = scene.disk / "filler"
    # Not buffered: on a full disk `close` would write the rest of the buffer again.
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65536))
    return path.unlink


def garbage(lies: Sequence[str]) -> Do:
    def do(scene: Scene, whom: float) -> None:
        lie = lies[int(97 * whom) % len(lies)]
        beside = scene.garbage / "new"
        beside.write_text(lie)
        beside.rename(scene.garbage / str(worker(scene, whom, computes=True)[0]))

    return do


GONE, REFUSED = "is gone", "is refused"
FAULTS: dict[str, Fault] = {
    "kill": Fault(killed, 28, of_process=True, said=GONE),
    "stop": Fault(stopped, 8, of_process=True, said=GONE),
    "garbage": Fault(garbage(["flipped", "cut", "stale"]), 11, of_process=True, said=REFUSED),
    # A frame that came too late is not checked, and no line reports it.
    "replay": Fault(garbage(["twice"]), 3, of_process=True),
    "throttle": Fault(throttle, 15, lasts_s=5.0),
    "blip": Fault(cut, 12, lasts_s=1.5),
    "full disk": Fault(fill, 10, lasts_s=5.0, said="storage:"),
    "partition": Fault(cut, 5, restarts=True, lasts_s=12.0),
    "master": Fault(master, 5, restarts=True),
    "torn": Fault(torn, 3, restarts=True, said="is left out"),
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
        if to == 0 and data.size > {least}:  # a gradient or a state, and no report
            if os.path.exists(trigger):
                with open(trigger) as file:
                    frames = lies[file.read()](data)
                os.unlink(trigger)
            before[:] = [data.copy()]
        for frame in frames:
            plain(self, to, frame, what)

    MpiTransport.send = send
"""
"""Source that ranks run first; `folder` has the files that name the ranks that send bad frames."""
LEAST_BYTES = 1000


def make_garbage_folder(folder: Path) -> Path:
    """Makes a folder for the PYTHONPATH of ranks. A file put there makes a rank send bad frames."""
    folder.mkdir()
    source = GARBAGE.format(folder=str(folder), least=LEAST_BYTES)
    (folder / "sitecustomize.py").write_text(source)
    return folder
