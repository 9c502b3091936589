"""State of a worker from step to step: its memory, and its batch-norm statistics."""

from collections.abc import Mapping

from torch import Tensor, nn

from atomo.memory import Memory
from atomo.training.checkpoints.schema import BUFFER, MEMORY, check_worker, kept_buffers

__all__ = ["buffers_in", "restore", "worker_state"]


def worker_state(memory: Memory, model: nn.Module) -> dict[str, Tensor]:
    """Returns a checkpoint's state of a worker, by flat names; it changes with the next step."""
    kept = {MEMORY + name: tensor for name, tensor in memory.state_dict(copy=False).items()}
    return kept | {BUFFER + name: tensor for name, tensor in kept_buffers(model).items()}


def buffers_in(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the part of a worker's state that any other may begin with: of its own images no
    memory.
    """
    return {name: tensor for name, tensor in state.items() if name.startswith(BUFFER)}


def restore(state: Mapping[str, Tensor], memory: Memory, model: nn.Module) -> None:
    """Puts a worker where `worker_state` says that it was.

    Raises:
        CheckpointError: the state is of another model or memory.
    """
    check_worker(state, model, type(memory))
    buffers = kept_buffers(model)
    for name, tensor in state.items():
        if name.startswith(BUFFER):
            buffers[name.removeprefix(BUFFER)].copy_(tensor)
    device = next(model.parameters()).device
    memory.load_state_dict(
        {
            name.removeprefix(MEMORY): tensor.to(device)
            for name, tensor in state.items()
            if name.startswith(MEMORY)
        }
    )
