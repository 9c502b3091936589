"""Where a run begins: at its first step, or at a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from atomo.config import Settings, check_identity
from atomo.errors import CheckpointError
from atomo.training.checkpoint import Snapshot, latest, load

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
    snapshot = load(folder, step)
    check_identity(settings, snapshot.config, folder)
    return snapshot


def spread(states: Sequence[Mapping[str, Tensor]], workers: int) -> list[dict[str, Tensor]]:
    """The states of the workers of a checkpoint, for as many workers as there are now.

    Where their number has changed, each gets the mean: the average gradient that is still to come
    out of the memories, and the batch-norm statistics, stay what they were.
    """
    if len(states) == workers:
        return [dict(state) for state in states]
    names = sorted({name for state in states for name in state})
    return [{name: mean([s[name] for s in states if name in s], len(states)) for name in names}
            for _ in range(workers)]  # fmt: skip


def mean(tensors: Sequence[Tensor], count: int) -> Tensor:
    """The mean over `count` states, of which those without the tensor count as zero."""
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)  # batches counted by batch norm
    return torch.stack(list(tensors)).sum(0) / count
