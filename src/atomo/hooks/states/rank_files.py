"""The state of an exchange: one file for each rank, in the checkpoint folder of a framework.

Every rank writes its own file, as frameworks do with the states of random numbers. So nothing is
gathered at the first rank. Another number of ranks can read the files too; the sum of all memories
is unchanged.
"""

import json
from pathlib import Path
from typing import Any, Final

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from atomo.core.safe_read import open_plain
from atomo.errors import CheckpointError
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.states.exchange_state import FACTORS
from atomo.hooks.states.memories import claimed
from atomo.training.folder.run_folder import Staging
from atomo.workloads.models.pretrained.tensor_files import READ_ERRORS

__all__ = ["exists", "load_ranks", "save_rank"]

MEMORY: Final = "memory"
ABOUT: Final = "atomo"  # the key in the header of a file: all that is no tensor, as JSON


def save_rank(exchange: Exchange, folder: Path, model: int = 0) -> None:
    """Writes the state of this rank. Every rank calls this. The file is complete, or absent.

    If a host counts as one worker, its first rank writes the state.

    Args:
        exchange: the exchange of a model, between two steps.
        folder: the folder of the checkpoint.
        model: the number of the model among those that are trained together.

    Raises:
        CheckpointError: the file cannot be written.
    """
    if not exchange.owner.keeps:
        return
    state, number = exchange.state_dict(), exchange.owner.memory
    tensors = named(MEMORY, state.pop("memories")[str(number)])
    tensors |= named(FACTORS, state.pop(FACTORS, {}))
    with Staging(folder) as staging:
        name = path_of(folder, model, number).name
        staging.write(name, save(tensors, {ABOUT: json.dumps(state)}))
        staging.publish()


def load_ranks(exchange: Exchange, folder: Path, model: int = 0) -> None:
    """Loads the files that `save_rank` wrote, on this number of ranks or another.

    Raises:
        CheckpointError: a file is missing or damaged, is of another step than the file of the
            first rank, or belongs to another model or memory.
    """
    owner = exchange.owner
    own = path_of(folder, model, owner.memory)
    # On hosts without a shared folder, there may be only the file of this rank.
    first = path_of(folder, model, 0)
    state, tensors = read(first if first.exists() else own)
    state[FACTORS] = below(FACTORS, tensors)
    state["memories"] = memories = {}
    for rank in claimed(owner.memory, owner.memories, state["ranks"]) if owner.keeps else ():
        path = path_of(folder, model, rank)
        about, tensors = read(path)
        if (about["ranks"], about["step"]) != (state["ranks"], state["step"]):
            raise CheckpointError(
                f"{path} is of step {about['step']} and {about['ranks']} ranks; the checkpoint is "
                f"of step {state['step']} and {state['ranks']} ranks"
            )
        memories[str(rank)] = below(MEMORY, tensors)
    exchange.load_state_dict(state)


def exists(folder: Path, model: int = 0) -> bool:
    """Returns True if the folder has a file of any rank for this model."""
    return any(folder.glob(path_of(folder, model, "*").name))


def path_of(folder: Path, model: int, rank: int | str) -> Path:
    return folder / f"atomo-model-{model}-rank-{rank}.safetensors"


def named(kind: str, entries: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns entries for a file; safetensors needs separate storage for each."""
    return {f"{kind}/{name}": entry.cpu().clone().contiguous() for name, entry in entries.items()}


def below(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the entries of one kind, by their original names."""
    start = f"{kind}/"
    return {n.removeprefix(start): entry for n, entry in tensors.items() if n.startswith(start)}


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads the metadata of a file, and its tensors.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        with open_plain(path, linked=True), safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about: dict[str, Any] = json.loads(file.metadata()[ABOUT])
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing: every rank writes a file when the checkpoint is saved, and reads "
            "the files of the ranks that it replaces"
        ) from error
    except (OSError, RecursionError, TypeError, *READ_ERRORS) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict) or not {"format", "ranks", "step", "memory"} <= about.keys():
        raise CheckpointError(f"{path} is damaged: its header has only {str(about)[:200]}")
    return about, tensors
