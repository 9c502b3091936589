"""Checks of the names, shapes and dtypes of a checkpoint: an undamaged file may be of another run.

Tensors are not resized, cut or converted to fit. A memory has no residual of a parameter before its
first gradient; the checkpoint then has no tensor for it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from atomo.errors import CheckpointError
from atomo.memory import Memory

__all__ = [
    "AHEAD",
    "BUFFER",
    "COUNTS",
    "EXCHANGE",
    "HOSTS",
    "INNER",
    "LOCAL",
    "MEMORY",
    "OUTER",
    "ROUND",
    "START",
    "check_kept",
    "check_tensor",
    "check_worker",
    "exchange_in",
    "kept_buffers",
    "load_model",
    "without_exchange",
    "without_round",
    "without_rounds",
]

BUFFER, MEMORY = "buffer/", "memory/"  # prefixes of names in a worker's state
LOCAL, INNER = "local/", "inner/"  # as well, with local steps: own weights, and own optimizer
START = "start/"  # as well, one round late: own weights at the beginning of the round
AHEAD = "ahead"  # as well, with a master: the own weights are those before the next anchor
ROUND = "round"  # as well: loss, correct samples, samples and steps since the round began
OUTER = "outer/"  # prefix of the outer optimizer and of means in flight, in an optimizer's state
EXCHANGE = "exchange/"  # prefix of a communicator's names in an optimizer's state
HOSTS = "hosts"  # after EXCHANGE: the host of each rank with --hierarchical
COUNTS = "counts"  # after EXCHANGE: the gradients and images since the last line of metrics


def load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Loads parameters and buffers into a model.

    Raises:
        CheckpointError: they are those of another model.
    """
    for name, own in model.state_dict().items():
        if name in tensors:
            check_tensor(name, tensors[name], own)
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the checkpoint is of another model: {reason}") from error


def kept_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers that are part of a checkpoint; the network computes all other buffers,
    such as position tables.
    """
    saved = model.state_dict()
    return {name: tensor for name, tensor in model.named_buffers() if name in saved}


def check_worker(state: Mapping[str, Tensor], model: nn.Module, memory: type[Memory]) -> None:
    """Raises CheckpointError unless `state` fits a worker with this model and memory."""
    buffers, parameters = kept_buffers(model), dict(model.named_parameters())
    for name, tensor in state.items():
        if name.startswith(BUFFER) and name.removeprefix(BUFFER) in buffers:
            check_tensor(name, tensor, buffers[name.removeprefix(BUFFER)])
        elif name.startswith((LOCAL, START)) and name.partition("/")[2] in parameters:
            check_tensor(name, tensor, parameters[name.partition("/")[2]])
        elif name == AHEAD:
            check_tensor(name, tensor, torch.zeros(()))
        elif name == ROUND:
            check_tensor(name, tensor, torch.zeros(4, dtype=torch.float64))
        elif name.startswith(INNER):
            pass  # the optimizer checks them
        elif name.removeprefix(MEMORY) in memory.scalars:
            check_tensor(name, tensor, torch.zeros((), dtype=torch.float64))
        elif name.startswith(MEMORY) and name.rpartition("/")[2] in parameters:
            single = name.removeprefix(MEMORY).startswith(memory.numbers)
            own = torch.zeros((), dtype=torch.float64) if single else None
            check_tensor(name, tensor, parameters[name.rpartition("/")[2]] if own is None else own)
            if not tensor.isfinite().all():
                raise CheckpointError(f"a worker's {name!r} in the checkpoint is not finite")
        else:
            raise CheckpointError(f"a worker of this run has no {name!r}; the checkpoint does")
    saved_buffers = [name for name in state if name.startswith(BUFFER)]
    if saved_buffers and len(saved_buffers) < len(buffers):
        raise CheckpointError(
            f"a worker has {len(buffers)} buffers; the checkpoint, {len(saved_buffers)}"
        )


def check_kept(values: Mapping[str, str], config: Mapping[str, object]) -> None:
    """Raises CheckpointError if the data gives this run other values than the checkpoint has."""
    for name, value in values.items():
        if value != config.get(name):
            raise CheckpointError(
                f"the {name} of the training data is {value!r}, and {config.get(name)!r} in the "
                "checkpoint; give the data that it was trained on, or --resume never"
            )


def check_tensor(name: str, tensor: Tensor, own: Tensor) -> None:
    """Raises CheckpointError if a tensor has another shape or dtype than the tensor in this run."""
    if (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
        raise CheckpointError(
            f"{name!r} is {tensor.dtype} {tuple(tensor.shape)} in the checkpoint, and "
            f"{own.dtype} {tuple(own.shape)} in this run: the checkpoint is of another model"
        )


def without_exchange(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a checkpoint's optimizer state without the part of the communicator."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(EXCHANGE)}


def without_rounds(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of a worker or of an optimizer without the part of local steps."""
    return {n: t for n, t in without_round(state).items() if not n.startswith((INNER, OUTER))}


def without_round(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of a worker that begins its round anew."""
    kept = {n: t for n, t in state.items() if n not in (AHEAD, ROUND)}
    return {n: t for n, t in kept.items() if not n.startswith((LOCAL, START))}


def exchange_in(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Joins the state of an exchange from the ranks beside rank 0."""
    return {n: tensor for state in states for n, tensor in state.items() if n.startswith(EXCHANGE)}
