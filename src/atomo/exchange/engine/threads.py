"""The intra-op threads of the threads beside the backward pass: one each."""

import torch

__all__ = ["one_thread"]


def one_thread() -> None:
    """Begins a thread that works on a bucket, while others work on other buckets.

    Several buckets in parallel keep the cores busy, not several threads on each; and a sum has
    the same bits on hosts of any number of cores.
    """
    torch.set_num_threads(1)  # of this thread: the others keep theirs
