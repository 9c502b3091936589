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

from atomo.training.listing import steps
from atomo.training.manifest import manifest_name

__all__ = ["FAULTS", "Fault", "Scene", "drawn"]

NARROW, WIDE = "20mbit", "1gbit"


@final
@dataclass(frozen=True)
class Scene:
    """What a fault is done to."""

    cluster: Cluster
    training: Training
    disk: Path | None
    """The file system that has the run alone, of little room; None: it lies with others."""
    garbage: Path
    """A worker sends a damaged frame, once, when a file with its rank's number is here."""


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


def drawn(seed: int, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Faults without end, each with a number that says to whom: the same for the same seed."""
    chance = random.Random(seed)
    weights = [FAULTS[name].weight for name in names]
    while True:
        yield chance.choices(names, weights)[0], chance.random()


def worker(scene: Scene, whom: float) -> tuple[int, int]:
    """A worker that lives, by rank and process."""
    ranks = sorted(one for one in scene.training.ranks().items() if one[0])
    return ranks[int(whom * len(ranks))] if ranks else (0, 0)


def signalled(number: int) -> Do:
    def do(scene: Scene, whom: float) -> None:
        send(worker(scene, whom)[1], number)

    return do


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
    """A host that is not the launcher's."""
    others = scene.cluster.hosts[1:]
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
    with path.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(65536))
            file.flush()
    return path.unlink


def garbage(scene: Scene, whom: float) -> None:
    (scene.garbage / str(worker(scene, whom)[0])).touch()


FAULTS: dict[str, Fault] = {
    "kill": Fault(signalled(signal.SIGKILL), 30),
    "stop": Fault(signalled(signal.SIGSTOP), 10),
    "throttle": Fault(throttle, 15, lasts_s=5.0),
    "blip": Fault(cut, 12, lasts_s=1.5),
    "full disk": Fault(fill, 10, lasts_s=5.0),
    "garbage": Fault(garbage, 10),
    "partition": Fault(cut, 5, restarts=True, lasts_s=12.0),
    "master": Fault(master, 5, restarts=True),
    "torn": Fault(torn, 3, restarts=True),
}
