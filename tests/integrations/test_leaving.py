"""What a process group of ours leaves behind when its process ends."""

import subprocess
import sys

PROGRAM = """
import atexit
from pathlib import Path

import numpy as np
import torch.distributed as dist


def threads_of_gloo():
    names = [one.read_text() for one in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


@atexit.register  # before that of our groups, so that it is called after
def tell():
    print(others, ours, threads_of_gloo() - others)


from atomo.integrations.collective import TorchCollective

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
others = threads_of_gloo()
collective = TorchCollective()
ours = threads_of_gloo() - others
list(collective.gather(np.zeros(9, np.uint8), "bytes"))
"""


def test_its_threads_end_before_the_interpreter():
    """They abort the process where they let go of a tensor while it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=600
    )
    others, ours, left = map(int, ended.stdout.split())
    assert others > 0
    assert ours > 0
    assert left == 0
