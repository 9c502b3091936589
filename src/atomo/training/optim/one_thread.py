"""Sums with the same bits on hosts with any number of cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["on_one_thread"]


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Runs the block on one PyTorch thread: with several threads, sums have another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
