"""The end of a process that has averaged gradients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


from atomo.exchange.collectives.torch_distributed import TorchCollective

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
others = threads()
collective = TorchCollective()
ours = threads() - others
list(collective.gather(np.zeros(9, np.uint8), "bytes"))
"""


@pytest.mark.long
def test_its_threads_end_before_the_interpreter():
    """A thread that frees a tensor while the interpreter ends aborts the process."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=600
    )
    ours, left = map(int, ended.stdout.split())
    assert ours > 0
    assert left == 0


SCRIPT = """
import sys
import torch
import torch.distributed as dist
import atomo

model = torch.nn.Linear(32, 16)
optimizer = atomo.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, "topk")
model(torch.ones(4, 32)).sum().backward()
optimizer.step()
print("ranks:", optimizer.exchange.size)
if "torch" in sys.argv:
    dist.destroy_process_group()
if "mpi" in sys.argv:
    from mpi4py import MPI
    MPI.Finalize()
"""
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]


@pytest.mark.parametrize(
    ("launcher", "ends"),
    [
        pytest.param([sys.executable], [], marks=pytest.mark.slow),
        pytest.param(TORCHRUN, [], marks=pytest.mark.long),
        pytest.param(TORCHRUN, ["torch"], marks=pytest.mark.long),
        pytest.param(MPIRUN, [], marks=pytest.mark.long),
        pytest.param(MPIRUN, ["mpi"], marks=pytest.mark.long),
    ],
    ids=["alone", "torchrun", "torchrun-ended", "mpirun", "mpirun-ended"],
)
def test_a_wrapped_optimizer_says_nothing_at_the_end(launcher, ends, tmp_path):
    """Holds with and without an end of the process group in the script."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        [*launcher, script, *ends],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": places},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "ranks:" in ended.stdout
