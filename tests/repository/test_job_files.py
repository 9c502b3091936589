"""The job files of examples/ do what they say: for sbatch with a stand-in for SLURM and for the
training; `tests/cluster/virtual/test_slurm.py` has real ones. SkyPilot's own validation runs where
`ATOMO_SKYPILOT` names the Python of an environment with SkyPilot, whose packages are not those of
this project.
"""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from support.jobs import Job

from atomo.launch.cli_settings import parse_cli_settings

EXAMPLES = Path(__file__).parents[2] / "examples"
# A training that ends with 130 once it is told to, and a command that says how it was asked.
TRAINING = """\
trap 'echo a checkpoint; exit 130' TERM
echo "training with $*"
[ "$1" = --slurm ] || exit 2
while true; do sleep 0.02; done
"""
SCONTROL = '#!/bin/sh\necho "scontrol $*"\n'
# A signal handler that returns only when the training has ended.
KILL = """\
kill() {
  builtin kill "$@" || return
  while builtin kill -0 "$2" 2>/dev/null; do sleep 0.01; done
}
"""


@pytest.fixture(params=["", KILL], ids=["", "training-ends-at-once"])
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Returns the script as SLURM would run it."""
    monkeypatch.chdir(tmp_path)
    Path("run_pytorch.sh").write_text(TRAINING)
    Path("scontrol").write_text(SCONTROL)
    Path("scontrol").chmod(0o755)
    Path("startup").write_text(request.param)
    job = Job(
        ["bash", str(EXAMPLES / "slurm.sbatch"), "--lr=1"],
        tmp_path / "log",
        {
            "SLURM_JOB_ID": "7",
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "BASH_ENV": str(tmp_path / "startup"),
        },
    )
    yield job
    job.kill()


def test_a_job_whose_time_is_up_goes_back_into_the_queue(batch):
    batch.says("training with --slurm --train-dir runs/slurm-7 --checkpoint-every 300 --lr=1")
    batch.process.send_signal(signal.SIGUSR1)
    assert batch.ends() == 130
    assert batch.output.endswith("scontrol requeue 7\n")
    assert batch.output.index("a checkpoint") < batch.output.index("scontrol")


def test_one_that_a_user_stops_does_not(batch):
    batch.says("training with")
    batch.process.send_signal(signal.SIGTERM)
    assert batch.ends() == 130
    assert "a checkpoint" in batch.output
    assert "scontrol" not in batch.output


SKYPILOT = os.environ.get("ATOMO_SKYPILOT", "")
VALIDATION = """\
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
task.validate_name()
task.validate_run()
print(task.name, task.num_nodes)
"""


@pytest.mark.skipif(not SKYPILOT, reason="ATOMO_SKYPILOT names no Python that has SkyPilot")
def test_skypilot_accepts_the_task_and_refuses_a_damaged_one(tmp_path):
    task = EXAMPLES / "skypilot.yaml"
    damaged = tmp_path / "damaged.yaml"
    damaged.write_text(task.read_text().replace("num_nodes: 4", "num_node: 4"))
    accepted, refused = (
        subprocess.run(
            [SKYPILOT, "-c", VALIDATION, path],
            cwd=EXAMPLES.parent, capture_output=True, text=True, check=False,
        )
        for path in (task, damaged)
    )  # fmt: skip
    assert accepted.returncode == 0, accepted.stderr
    assert accepted.stdout.split() == ["atomo", "4"]
    assert refused.returncode != 0
    assert "num_node" in refused.stderr


def test_the_task_of_skypilot_has_commands_that_there_are():
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    assert set(task) <= {"name", "num_nodes", "workdir", "resources", "envs", "file_mounts",
                         "setup", "run"}  # fmt: skip
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n", "-c", script], check=True)
    known = {*task["envs"], "ranks", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK",
             "SKYPILOT_NODE_IPS"}  # fmt: skip
    assert set(re.findall(r"\$(\w+)", task["run"])) <= known
    options = task["run"].replace("\\\n", " ").partition("--transport torch ")[2]
    words = shlex.split(options.replace("$OPTIONS", task["envs"]["OPTIONS"]))
    assert parse_cli_settings(words, "rank", "").settings.dataset == "Digits"
