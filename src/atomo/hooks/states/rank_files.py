"""The state of an exchange, as a file of each rank in the folder of somebody else's checkpoint.

Every rank writes its own, beside the states of random numbers that frameworks write so: nothing
travels, and a checkpoint of many ranks is no burden to the first. Another number of ranks reads
them too; the sum of all memories stays what it was.
"""

import json
from pathlib import Path
from typing import Any, Final

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from atomo.core.safe_read import open_plain
from atomo.errors import CheckpointError
from atomo.hooks.adapter.exchange import FACTORS, Exchange
from atomo.hooks.states.memories import claimed
from atomo.training.folder.run_folder import Staging
from atomo.workloads.models.pretrained.tensor_files import READ_ERRORS

__all__ = ["exists", "load_ranks", "save_rank"]

MEMORY: Final = "memory"
ABOUT: Final = "atomo"  # in the header of a file: what is no tensor, as JSON


def save_rank(exchange: Exchange, folder: Path, model: int = 0) -> None:
    """Writes what this rank keeps; every rank does so. The file is there whole, or not at all.

    Among several ranks of a host it is the first that has something to write.

    Args:
        exchange: of one model, between two steps.
        folder: of the checkpoint.
        model: its number among those that are trained together.

    Raises:
        CheckpointError: it cannot be written.
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
    """Continues from what `save_rank` wrote, on this number of ranks or another.

    Raises:
        CheckpointError: a file is missing, damaged, of another step than the first rank's, or of
            another model or memory.
    """
    owner = exchange.owner
    own = path_of(folder, model, owner.memory)
    first = path_of(folder, model, 0)  # on hosts that share no folder, this rank's own
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
    """Returns True if any rank wrote a file of this model there."""
    return any(folder.glob(path_of(folder, model, "*").name))


def path_of(folder: Path, model: int, rank: int | str) -> Path:
    return folder / f"atomo-model-{model}-rank-{rank}.safetensors"


def named(kind: str, entries: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns entries as a file has them: safetensors wants each to have storage of its own."""
    return {f"{kind}/{name}": entry.cpu().clone().contiguous() for name, entry in entries.items()}


def below(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the entries of one kind, by the names that they had."""
    start = f"{kind}/"
    return {n.removeprefix(start): entry for n, entry in tensors.items() if n.startswith(start)}


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads the metadata of a file, and its tensors.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        with open_plain(path, linked=True), safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about: dict[str, Any] = json.loads(file.metadata()[ABOUT])
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing: every rank writes one where the checkpoint is saved, and reads "
            "those of the ranks that it takes over"
        ) from error
    except (OSError, RecursionError, TypeError, *READ_ERRORS) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict) or not {"format", "ranks", "step", "memory"} <= about.keys():
        raise CheckpointError(f"{path} is damaged: it says no more than {str(about)[:200]}")
    return about, tensors
