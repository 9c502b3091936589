"""Where a run begins: at its first step, or at a checkpoint."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from atomo.config import Settings
from atomo.errors import CheckpointError
from atomo.identity import check_identity
from atomo.training.checkpoint import CheckpointGone, Snapshot, latest, load, steps

__all__ = ["find_snapshot", "spread"]


def find_snapshot(settings: Settings) -> Snapshot | None:
    """The checkpoint that `--resume` asks for, or None where the run starts anew.

    Raises:
        CheckpointError: it was named and is not there, or cannot be read.
        ConfigError: it was made with settings that this run contradicts.
    """
    if settings.resume == "never":
        return None
    named = settings.resume != "auto"
    folder = Path(settings.resume if named else settings.train_dir)
    step = latest(folder) if folder.is_dir() else None
    if step is None:
        if named:
            raise CheckpointError(f"--resume {folder}: there is no checkpoint in that folder")
        return None
    snapshot = loaded(folder, step)
    check_identity(settings, snapshot.config, folder)
    return snapshot


def loaded(folder: Path, step: int) -> Snapshot:
    """A checkpoint; where it is damaged, the error says how to continue from one before it."""
    try:
        return load(folder, step)
    except CheckpointGone:
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {way_back(folder, step)}") from error


def way_back(folder: Path, damaged: int) -> str:
    """What to do when the last checkpoint is damaged: nothing is thrown away."""
    place, aside = shlex.quote(str(folder)), shlex.quote(str(folder / "damaged"))
    files: list[str] = []
    for step in reversed([step for step in steps(folder) if step <= damaged]):
        if step < damaged and whole(folder, step):
            return (
                f"the one of step {step} is whole: to continue from it, "
                f"`mkdir -p {aside} && mv {' '.join(files)} {aside}`, then the same command again"
            )
        files.append(f"{place}/step-{step:08}.*")
    return "none before it is whole; --resume never starts anew and keeps the folder"


def whole(folder: Path, step: int) -> bool:
    """Whether a checkpoint can be loaded."""
    try:
        load(folder, step, patience_s=0.0)
    except CheckpointError:
        return False
    return True


def spread(states: Sequence[Mapping[str, Tensor]], workers: int) -> list[dict[str, Tensor]]:
    """The states of the workers of a checkpoint, for as many workers as there are now.

    Where their number has changed, each gets the mean: the average gradient that is still to come
    out of the memories, and the batch-norm statistics, stay what they were.
    """
    if len(states) == workers:
        return [dict(state) for state in states]
    # A worker that kept nothing of a parameter kept zeros of it: all count in the mean.
    names = sorted({name for state in states for name in state})
    return [{name: mean([s[name] for s in states if name in s], len(states)) for name in names}
            for _ in range(workers)]  # fmt: skip


def mean(tensors: Sequence[Tensor], count: int) -> Tensor:
    """The mean over `count` states, of which those without the tensor count as zero."""
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)  # batches counted by batch norm
    return torch.stack(list(tensors)).sum(0) / count
