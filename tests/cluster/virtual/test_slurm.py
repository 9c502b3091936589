"""A real SLURM: the script of examples/ trains, is told that its time is up, and goes on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.virtual.slurm_lab import Slurm, lacking
from cluster.virtual.vc import Tool
from support.jobs import until

from atomo.training.checkpoints.checkpoint import latest

pytestmark = [
    pytest.mark.skipif(bool(lacking()), reason=f"NOT TESTED WITH A SLURM: {lacking()}"),
    pytest.mark.long,
]
HOSTS = 3
WHERE = """\
import subprocess, sys
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.jobs.mpirun import mpirun_command
line = mpirun_command(parse_cli_settings(sys.argv[1:], "train", "").settings, [])
start = line[: line.index(sys.executable)]
sys.exit(subprocess.call([*start, "sh", "-c", "echo $OMPI_COMM_WORLD_RANK $(hostname)"]))
"""


@pytest.fixture
def slurm(tool: Tool, environment: dict[str, str], tmp_path: Path) -> Iterator[Slurm]:
    tool.does("up", "--hosts", str(HOSTS), "--rate", "1gbit")
    tool.environment |= environment
    with Slurm(tool, tmp_path / "slurm", HOSTS) as up:
        yield up


def ranks(slurm: Slurm, asked: str, *options: str) -> list[str]:
    """Returns the hosts of a job's ranks, in an allocation of salloc."""
    allocation = ["salloc", "--quiet", *asked.split()]
    output = slurm.does(*allocation, "python", "-c", WHERE, *options).splitlines()
    return [line.split()[1] for line in sorted(output) if line[:1].isdigit()]


def begins(slurm: Slurm, job: str) -> bool:
    """True if a job runs, which SLURM has wait for two minutes once it is in the queue again."""
    slurm.on("h1", "scontrol", "update", f"JobId={job}", "StartTime=now")
    return slurm.field(job, "JobState") == "RUNNING"


def test_a_job_is_where_slurm_says_and_goes_on_in_its_next_allocation(slurm, tmp_path):
    assert ranks(slurm, "-N3 -n 7", "--slurm") == ["h1"] * 4 + ["h2"] * 2 + ["h3"]
    assert ranks(slurm, "-N2 -w h2,h3", "--slurm") == ["h2", "h3"]  # from h1, as a login node
    assert ranks(slurm, "-N3", "--n=4") == ["h1"] * 4  # the job does not use the allocation
    run, log = tmp_path / "run", tmp_path / "log"
    options = [f"--train-dir={run}", "--epochs=1000", "--lr=1e-4", "--evaluator=none"]
    options += ["--threads=1", "--batch-size=8", "--log-interval=1", "--code=sgd"]
    asked = ["sbatch", "--parsable", "--nodes=3", f"--output={log}", "examples/slurm.sbatch"]
    job = slurm.does(*asked, *options)

    def steps() -> int:
        found = run / "metrics.jsonl"
        return len(found.read_text().splitlines()) if found.exists() else 0

    until(lambda: steps() > 2, "steps")
    slurm.does("scancel", "--batch", "--signal=USR1", job)  # as SLURM does before the time is up
    until(lambda: slurm.field(job, "Restarts") == "1", "it to be in the queue again")
    stopped = latest(run)
    assert stopped
    assert stopped == steps()
    until(lambda: begins(slurm, job), "it to begin again")
    until(lambda: steps() > stopped + 1, "more steps")
    slurm.does("scancel", "--batch", "--signal=TERM", job)  # a user has enough
    until(lambda: slurm.field(job, "JobState") == "FAILED", "its end")
    assert slurm.field(job, "ExitCode") == "130:0"
    assert latest(run) == steps()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(1, steps() + 1)]
    assert f"continued at step {stopped + 1}" in log.read_text()
    assert "Traceback" not in log.read_text()
