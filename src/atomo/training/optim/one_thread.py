"""Sums that have the same bits on hosts of any number of cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["on_one_thread"]


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Has PyTorch compute the block on one thread: with more it adds up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
