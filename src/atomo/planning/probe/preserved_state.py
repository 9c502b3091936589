"""Passes without effect on later computations, which have the same bits as without the passes."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.nn import Module

__all__ = ["preserved_state"]


@contextmanager
def preserved_state(model: Module) -> Iterator[None]:
    """Restores the state that passes of `model` change: its buffers, such as batch norm's
    statistics, its gradients, and the random state of Python, NumPy and PyTorch.
    """
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in model.buffers()]
    gradients = [parameter.grad for parameter in model.parameters()]
    drawn, drawn_numpy = random.getstate(), np.random.get_state()
    devices = {tensor.device.index for tensor in tensors if tensor.is_cuda}
    try:
        with torch.random.fork_rng([index for index in devices if index is not None]):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_numpy)
        with torch.no_grad():
            for tensor, was in zip(model.buffers(), before, strict=True):
                tensor.copy_(was)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
