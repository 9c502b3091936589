"""Ranks as forks of one process, which has already imported the slow modules.

forks.py SCRIPT SIZE FOLDER ARGUMENTS

runs `SCRIPT RANK SIZE FOLDER ARGUMENTS` for each rank; its output goes to FOLDER/rank-RANK.txt.
"""

import os
import runpy
import sys
from pathlib import Path

from atomo.core.process.collector import import_for_good

SCRIPT, SIZE, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
# What scripts import, here or later.
COMMON = ("pytest", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp",
          "atomo.hooks.ddp")  # fmt: skip


def become(rank: int) -> None:
    """Makes this process a rank."""
    printed = os.open(FOLDER / f"rank-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(printed, stream)
    sys.argv[:3] = [SCRIPT, str(rank), str(SIZE)]
    runpy.run_path(SCRIPT, run_name="__main__")


def main() -> None:
    for name in COMMON:
        import_for_good(name)
    children = []
    for rank in range(SIZE):
        child = os.fork()
        if child == 0:
            become(rank)
            return
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(any(codes))


main()
