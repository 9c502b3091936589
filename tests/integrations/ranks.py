"""Jobs of real processes that meet over gloo on this machine: a script for each rank."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

PATIENCE_S = 600.0  # only what hangs takes as long


def run_ranks(script: Path, size: int, folder: Path, *arguments: str) -> list[str]:
    """Runs `script RANK SIZE FOLDER ARGUMENTS` for each rank; what each of them printed.

    Warnings are errors there as well.
    """
    command = [sys.executable, "-W", "error", str(script)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        printed = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert codes == [0] * size, "\n".join(printed)
    return printed


@contextmanager
def alone() -> Iterator[None]:
    """This process as the only rank of a job."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
