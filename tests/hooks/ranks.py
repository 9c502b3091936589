"""Jobs of real processes that meet over gloo on this machine: a script for each rank."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch.distributed as dist

PATIENCE_S = 600.0  # only a hang takes as long


def run_ranks(script: Path, size: int, folder: Path, *arguments: str) -> list[str]:
    """Runs `script RANK SIZE FOLDER ARGUMENTS` for each rank; returns the output of each.

    Warnings are errors there as well.
    """
    forks = Path(__file__).with_name("forks.py")
    command = [sys.executable, "-W", "error", forks, script, str(size), folder, *arguments]
    # Scripts import from each other as the tests do.
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    # A session, so that its forks end with it.
    process = subprocess.Popen(command, start_new_session=True, env=environment)
    try:
        code = process.wait(PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    printed = [(folder / f"rank-{rank}.txt").read_text() for rank in range(size)]
    assert code == 0, "\n".join(printed)
    return printed


@contextmanager
def alone() -> Iterator[None]:
    """This process as the only rank of a job."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
