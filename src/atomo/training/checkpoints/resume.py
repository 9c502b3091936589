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
from atomo.training.checkpoints.schema import (
    COUNTS,
    EXCHANGE,
    HOSTS,
    MEMORY,
    exchange_in,
    without_round,
    without_rounds,
)
from atomo.training.folder.run_folder import PATIENCE_S

__all__ = ["find_snapshot", "hosts_in", "snapshot_of", "spread"]


def find_snapshot(
    settings: Settings, say: Callable[[str], object] = lambda why: None, *, planned: bool = False
) -> Snapshot | None:
    """Returns the checkpoint that `--resume` selects, or None for a new run.

    Args:
        settings: of the run.
        say: receives a message about each damaged checkpoint that is skipped.
        planned: True if a plan chose the codecs: they may differ from those of the checkpoint.

    Raises:
        CheckpointError: the folder of `--resume` has no checkpoint, or no readable checkpoint.
        ConfigError: the settings of the checkpoint contradict this run.
    """
    if settings.resume == "never":
        return None
    folder = Path(settings.resume_folder)
    saved_steps = steps(folder) if folder.is_dir() else []
    if not saved_steps:
        if settings.resumes_elsewhere:
            raise CheckpointError(f"--resume {folder}: there is no checkpoint in that folder")
        return None
    return adapted(settings, newest(folder, saved_steps, say), folder, say, planned=planned)


def snapshot_of(settings: Settings, folder: Path, step: int) -> Snapshot:
    """Returns the checkpoint that a new plan continues from; raises as `find_snapshot` does."""
    return adapted(settings, load(folder, step), folder, lambda why: None, planned=True)


def adapted(
    settings: Settings,
    snapshot: Snapshot,
    folder: Path,
    say: Callable[[str], object],
    *,
    planned: bool,
) -> Snapshot:
    """Returns a checkpoint without the state that the settings of this run cannot continue."""
    differences = check_identity(settings, snapshot.config, folder, planned=planned)
    if not differences:
        return snapshot
    dropped = []
    if settings.memory != snapshot.config.get("memory"):
        dropped.append("the memories of the workers")
        snapshot = replace(snapshot, workers=tuple(map(without_memory, snapshot.workers)))
    if settings.optimizer != snapshot.config.get("optimizer"):
        dropped.append("the state of the optimizer")
        own = tuple(map(without_rounds, snapshot.workers))
        snapshot = replace(snapshot, optimizer=exchange_in([snapshot.optimizer]), workers=own)
    state = f", without {' and '.join(dropped)}" if dropped else ""
    say(
        f"continues from step {snapshot.step}{state}, with other settings: {', '.join(differences)}"
    )
    return snapshot


def newest(folder: Path, saved_steps: Sequence[int], say: Callable[[str], object]) -> Snapshot:
    """Returns the last readable checkpoint.

    Damaged checkpoints are not deleted: the run overwrites them when it reaches their steps.
    """
    errors: list[CheckpointError] = []
    for step in reversed(saved_steps):
        try:
            # NFS may not show all files of the newest checkpoint yet; it shows older files.
            return load(folder, step, patience_s=0.0 if errors else PATIENCE_S)
        except CheckpointError as error:
            errors.append(error)
            say(f"the checkpoint of step {step} is left out: {error}")
    raise CheckpointError(
        f"{errors[0]}; all earlier checkpoints are damaged, too; --resume never starts a new run "
        "in this folder"
    ) from errors[0]


def hosts_in(snapshot: Snapshot) -> Sequence[int]:
    """Returns the host of each worker of a checkpoint, as the number of the host's first worker.

    Without `--hierarchical`, each worker counts as a host.

    Raises:
        CheckpointError: the hosts are of another number of workers than the checkpoint has.
    """
    count = max(1, len(snapshot.workers))
    stored = snapshot.optimizer.get(EXCHANGE + HOSTS)
    if stored is None:
        return range(count)
    if stored.shape != (count,) or stored.is_floating_point() or not bool((stored >= 0).all()):
        raise CheckpointError(
            f"the checkpoint has the hosts of its {count} workers as {stored.dtype} "
            f"{tuple(stored.shape)}: it is damaged, or of another version"
        )
    hosts: list[int] = stored.tolist()
    return hosts


def counts_in(snapshot: Snapshot) -> list[list[int]]:
    """Returns a checkpoint's counts of gradients and images since its last step.

    Raises:
        CheckpointError: the counts are of another shape or dtype.
    """
    stored = snapshot.optimizer.get(EXCHANGE + COUNTS)
    if stored is None:
        return []
    if stored.shape != (2, 5) or stored.is_floating_point():
        raise CheckpointError(
            f"the checkpoint has counts of gradients and images as {stored.dtype} "
            f"{tuple(stored.shape)}: it is damaged, or of another version"
        )
    counts: list[list[int]] = stored.tolist()
    return counts


def spread(
    states: Sequence[Mapping[str, Tensor]], hosts: Sequence[int], saved_hosts: Sequence[int]
) -> list[dict[str, Tensor]]:
    """Maps the states of a checkpoint's workers to the workers of this run.

    With the same hosts, each worker gets its own state, and all residuals of its host: another
    worker of the host may compress a parameter now. Otherwise each worker gets the mean over hosts,
    since a host compresses as one worker: the mean of the residuals, which later steps still send,
    and the mean batch-norm statistics stay the same.

    Args:
        states: by worker.
        hosts: the host of each worker, as the number of the host's first worker.
        saved_hosts: the same in the checkpoint.
    """
    by_host = {host: together([s for s, of in zip(states, saved_hosts, strict=True) if of == host])
               for host in saved_hosts}  # fmt: skip
    if [*hosts] == [*saved_hosts]:
        pairs = zip(states, saved_hosts, strict=True)
        return [{**state, **by_host[host]} for state, host in pairs]
    # A round of local steps begins anew at the anchor, with the mean of the inner optimizers.
    own = [without_round(without_memory(state)) for state in states]
    means = averaged(own) | averaged([*by_host.values()])
    return [dict(means) for _ in hosts]


def averaged(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the mean of states. A missing residual counts as zeros."""
    names = sorted({name for state in states for name in state})
    return {name: mean([s[name] for s in states if name in s], len(states)) for name in names}


def together(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Joins the residuals of one host: each parameter's residual is in one worker's state."""
    return {n: tensor for state in states for n, tensor in state.items() if n.startswith(MEMORY)}


def without_memory(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a worker's state without residuals."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(MEMORY)}


def mean(tensors: Sequence[Tensor], count: int) -> Tensor:
    """Returns the mean over `count` states; states without the tensor count as zero."""
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)  # batches counted by batch norm
    return torch.stack(list(tensors)).sum(0) / count
