"""Ranks go where the host file says, asked of mpirun itself."""

import sys
from pathlib import Path

import pytest

from atomo.config.settings import Settings
from atomo.launch.jobs.mpirun import mpirun_command

pytestmark = pytest.mark.slow

# With MPI: mpirun was seen to hang on processes that end at once (Open MPI 5.0.11).
SAY_WHERE = """
import socket
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print(MPI.COMM_WORLD.rank, socket.gethostname(), flush=True)
"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("10.77.0.1 slots=1\n10.77.0.2\n10.77.0.3\n", ["h1", "h2", "h2", "h3", "h3"]),
        ("10.77.0.1\n10.77.0.2 slots=1\n", ["h1", "h1", "h1", "h1", "h2"]),
    ],
    ids=["the master alone", "more here than cores"],
)
def test_ranks_are_dealt_out_within_the_slots(text, where, cluster, tmp_path: Path):
    (tmp_path / "hosts").write_text(text)
    line = mpirun_command(Settings(n=5, hostfile=str(tmp_path / "hosts")), [])
    start = line[: line.index(sys.executable) + 1]
    output = cluster.does("exec", "h1", *start, "-c", SAY_WHERE).splitlines()
    ranks = sorted(line for line in output if line[:1].isdigit())  # mpirun may print a warning
    assert ranks == [f"{rank} {host}" for rank, host in enumerate(where)]
