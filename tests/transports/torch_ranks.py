"""The ranks of `test_torch_distributed`: `python torch_ranks.py NAME ...`."""

import os
import sys

import torch.distributed as dist
from scenarios import play

from atomo.transports import connect, torch_distributed

if __name__ == "__main__":
    torch_distributed.MAX_CHUNK_BYTES = 100_000  # so that large messages travel in parts
    # By a file, and not by a port that another process may take. Joined as a program does that has
    # torch.distributed running already; a test of the command line has torchrun.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['ATOMO_TEST_STORE']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    play(sys.argv[1:], connect("torch"), dist.barrier)
