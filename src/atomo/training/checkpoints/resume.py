"""The start of a run: its first step, or a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from atomo.config.identity import check_identity
from atomo.config.settings import Settings
from atomo.errors import CheckpointError
from atomo.training.checkpoints.checkpoint import Snapshot, load, steps
from atomo.training.checkpoints.schema import COUNTS, EXCHANGE, HOSTS, MEMORY, exchange_in
from atomo.training.folder.run_folder import PATIENCE_S

__all__ = ["find_snapshot", "hosts_in", "snapshot_of", "spread"]


def find_snapshot(
    settings: Settings, say: Callable[[str], object] = lambda why: None
) -> Snapshot | None:
    """Returns the checkpoint that `--resume` asks for, or None where the run starts anew.

    Args:
        settings: of the run.
        say: told of each checkpoint that is left out because it is damaged.

    Raises:
        CheckpointError: it was named and is not there, or none that is there can be read.
        ConfigError: it was made with settings that this run contradicts.
    """
    if settings.resume == "never":
        return None
    folder = Path(settings.resume_folder)
    there = steps(folder) if folder.is_dir() else []
    if not there:
        if settings.resumes_elsewhere:
            raise CheckpointError(f"--resume {folder}: there is no checkpoint in that folder")
        return None
    return adapted(settings, newest(folder, there, say), folder, say)


def snapshot_of(settings: Settings, folder: Path, step: int) -> Snapshot:
    """Returns the checkpoint of a step. Errors: `find_snapshot`."""
    return adapted(settings, load(folder, step), folder, lambda why: None)


def adapted(
    settings: Settings, snapshot: Snapshot, folder: Path, say: Callable[[str], object]
) -> Snapshot:
    """Returns a checkpoint without the state that the settings of this run cannot continue."""
    differences = check_identity(settings, snapshot.config, folder)
    if not differences:
        return snapshot
    dropped = []
    if settings.memory != snapshot.config.get("memory"):
        dropped.append("the memories of the workers")
        snapshot = replace(snapshot, workers=tuple(map(without_memory, snapshot.workers)))
    if settings.optimizer != snapshot.config.get("optimizer"):
        dropped.append("the state of the optimizer")
        snapshot = replace(snapshot, optimizer=exchange_in([snapshot.optimizer]))
    state = f", without {' and '.join(dropped)}" if dropped else ""
    say(
        f"continues from step {snapshot.step}{state}, with other settings: {', '.join(differences)}"
    )
    return snapshot


def newest(folder: Path, there: Sequence[int], say: Callable[[str], object]) -> Snapshot:
    """Returns the last of the checkpoints `there` that can be read. Nothing is thrown away: what is
    damaged stays where it is, until the run has come to its step again.
    """
    errors: list[CheckpointError] = []
    for step in reversed(there):
        try:
            # What came just now through NFS is given its time; older ones have had theirs.
            return load(folder, step, patience_s=0.0 if errors else PATIENCE_S)
        except CheckpointError as error:
            errors.append(error)
            say(f"the checkpoint of step {step} is left out: {error}")
    raise CheckpointError(
        f"{errors[0]}; none before it is whole; --resume never starts anew and keeps the folder"
    ) from errors[0]


def hosts_in(snapshot: Snapshot) -> Sequence[int]:
    """Returns the host of each worker of a checkpoint, by its first; of most, a host each.

    Raises:
        CheckpointError: it says that of other workers than it has.
    """
    count = max(1, len(snapshot.workers))
    said = snapshot.optimizer.get(EXCHANGE + HOSTS)
    if said is None:
        return range(count)
    if said.shape != (count,) or said.is_floating_point() or not bool((said >= 0).all()):
        raise CheckpointError(
            f"the checkpoint has the hosts of its {count} workers as {said.dtype} "
            f"{tuple(said.shape)}: it is damaged, or of another version"
        )
    found: list[int] = said.tolist()
    return found


def counts_in(snapshot: Snapshot) -> list[list[int]]:
    """Returns a checkpoint's counts of gradients and images since its last step.

    Raises:
        CheckpointError: it has none of both.
    """
    said = snapshot.optimizer.get(EXCHANGE + COUNTS)
    if said is None:
        return []
    if said.shape != (2, 5) or said.is_floating_point():
        raise CheckpointError(
            f"the checkpoint has counts of gradients and images as {said.dtype} "
            f"{tuple(said.shape)}: it is damaged, or of another version"
        )
    found: list[list[int]] = said.tolist()
    return found


def spread(
    states: Sequence[Mapping[str, Tensor]], now: Sequence[int], was: Sequence[int]
) -> list[dict[str, Tensor]]:
    """Returns the states of the workers of a checkpoint, for the workers that there are now.

    Each gets its own where nothing has changed, with all the memories of its host: which worker of
    a host has that of which parameter may have. Else each gets the mean over hosts, as each is one
    worker to what is compressed: the average gradient that is still to come out of the memories,
    and the batch-norm statistics, stay what they were.

    Args:
        states: by worker.
        now: the host of each worker, by its first.
        was: the same of the checkpoint.
    """
    by_host = {host: together([s for s, of in zip(states, was, strict=True) if of == host])
               for host in was}  # fmt: skip
    if [*now] == [*was]:
        pairs = zip(states, was, strict=True)
        return [{**state, **by_host[host]} for state, host in pairs]
    means = averaged([without_memory(state) for state in states]) | averaged([*by_host.values()])
    return [dict(means) for _ in now]


def averaged(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the mean of states. A worker that kept nothing of a parameter kept zeros of it."""
    names = sorted({name for state in states for name in state})
    return {name: mean([s[name] for s in states if name in s], len(states)) for name in names}


def together(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the memories of one host: that of a parameter is with one of its workers."""
    return {n: held for state in states for n, held in state.items() if n.startswith(MEMORY)}


def without_memory(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the rest of a worker's state."""
    return {name: held for name, held in state.items() if not name.startswith(MEMORY)}


def mean(tensors: Sequence[Tensor], count: int) -> Tensor:
    """Returns the mean over `count` states, of which those without the tensor count as zero."""
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)  # batches counted by batch norm
    return torch.stack(list(tensors)).sum(0) / count
