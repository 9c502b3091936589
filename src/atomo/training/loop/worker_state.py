"""State of a worker from step to step: its memory, and its batch-norm statistics."""

from collections.abc import Mapping

from torch import Tensor, nn

from atomo.memory import Memory
from atomo.training.checkpoints.schema import BUFFER, MEMORY, check_worker, kept_buffers

__all__ = ["buffers_in", "restore", "worker_state"]


def worker_state(memory: Memory, model: nn.Module) -> dict[str, Tensor]:
    """Returns a checkpoint's state of a worker, by flat names; it changes with the next step."""
    residuals = {MEMORY + name: tensor for name, tensor in memory.state_dict(copy=False).items()}
    return residuals | {BUFFER + name: tensor for name, tensor in kept_buffers(model).items()}


def buffers_in(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the part of a worker's state that another worker may begin with: no residuals."""
    return {name: tensor for name, tensor in state.items() if name.startswith(BUFFER)}


def restore(state: Mapping[str, Tensor], memory: Memory, model: nn.Module) -> None:
    """Restores a worker from the result of `worker_state`.

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
