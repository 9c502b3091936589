"""What a process group of ours leaves behind when its process ends."""

import subprocess
import sys

PROGRAM = """
import atexit
import os
import time

import numpy as np
import torch.distributed as dist


def threads():
    return len(os.listdir("/proc/self/task"))


@atexit.register  # before that of our groups, so that it is called after
def tell():
    end = time.monotonic() + 20
    while threads() > others and time.monotonic() < end:
        pass  # the system counts one that has ended for a moment still
    print(ours, threads() - others)


from atomo.integrations.collective import TorchCollective

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
others = threads()
collective = TorchCollective()
ours = threads() - others
list(collective.gather(np.zeros(9, np.uint8), "bytes"))
"""


def test_its_threads_end_before_the_interpreter():
    """They abort the process where they let go of a tensor while it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=600
    )
    ours, left = map(int, ended.stdout.split())
    assert ours > 0
    assert left == 0
