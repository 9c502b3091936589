"""The state of a replica: one file for each rank, in the checkpoint folder of a framework."""

from pathlib import Path
from typing import Any

from atomo.core.safe_read import open_plain
from atomo.errors import CheckpointError
from atomo.hooks.local.replica import LocalReplica
from atomo.hooks.states.packed import pack, unpack
from atomo.training.folder.run_folder import Staging

__all__ = ["load_replica", "save_replica"]


def save_replica(replica: LocalReplica, folder: Path, model: int = 0) -> None:
    """Writes the state and the weights of this rank. The file is complete, or absent.

    Args:
        replica: the replica, between two steps.
        folder: the folder of the checkpoint.
        model: the number of the model among those that are trained together.

    Raises:
        CheckpointError: the file cannot be written.
    """
    name = path_of(folder, model, replica.exchange.rank).name
    with Staging(folder) as staging:
        staging.write(name, pack(replica.state_dict(weights=True)))
        staging.publish()


def load_replica(replica: LocalReplica, folder: Path, model: int = 0) -> dict[str, Any] | None:
    """Loads the files of `save_replica`, on this number of ranks or another.

    The same number of ranks continues in the middle of the round. Another number begins at the
    anchor, with all memories, and with the moments of the rank whose number is that of this rank
    modulo the number of files.

    Returns:
        The state, whose "optimizer" has the moments for this rank; None: the checkpoint has no
        such files.

    Raises:
        CheckpointError: a file is damaged, or belongs to another model, memory or other rounds.
    """
    paths = sorted(folder.glob(path_of(folder, model, "*").name))
    if not paths:
        return None
    own = path_of(folder, model, replica.exchange.rank)
    # On hosts without a shared folder, there may be only the file of this rank.
    state = read(own if own.exists() else paths[0])
    if state["exchange"]["ranks"] != replica.exchange.owner.memories:
        state = from_all(replica, [read(path) for path in paths])
    replica.load_state_dict(state, inner=False)
    return state


def from_all(replica: LocalReplica, states: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the state for a rank of another number of ranks."""
    states.sort(key=lambda state: state["replica"])
    if len({state["steps"] for state in states}) > 1:
        raise CheckpointError("the files of the replicas are of different steps")
    memories = {n: m for state in states for n, m in state["exchange"].get("memories", {}).items()}
    moments = states[replica.exchange.rank % len(states)]["optimizer"]
    exchange = states[0]["exchange"] | {"memories": memories}
    return states[0] | {"replica": None, "exchange": exchange, "optimizer": moments}


def path_of(folder: Path, model: int, rank: int | str) -> Path:
    return folder / f"atomo-local-steps-{model}-rank-{rank}.safetensors"


def read(path: Path) -> dict[str, Any]:
    """Reads the state of a replica.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        with open_plain(path, linked=True) as file:
            state = unpack(file.read())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict) or not {"replica", "steps", "exchange"} <= state.keys():
        raise CheckpointError(f"{path} is damaged: it has no state of a replica")
    return state
