"""Whatever goes wrong on any rank ends the whole job, says so once, and leaves nothing running."""

import json
import re
from pathlib import Path

import pytest
from jobs import faults, run, started, until
from support import run_threads, settings

from atomo.training.checkpoint import finished, latest, load

QUICK = ["train", "--network=LeNet", "--batch-size=8", "--threads=1", "--evaluator=none"]
QUICK += ["--log-interval=1", "--code=sgd", "--max-steps=9", "--eval-freq=2"]

WORKER = """
from atomo.training.worker import Worker
original = Worker._take_step
def planted(self, step, *times):
    if step == 3:
        {fault}
    original(self, step, *times)
Worker._take_step = planted
"""
MASTER = """
from atomo.training.master import Master
original = Master._take_step
def planted(self, step):
    if step == 3:
        {fault}
    return original(self, step)
Master._take_step = planted
"""
REPLICA = """
from atomo.training.replica import Replica
original = Replica.take_step
def planted(self, *, ending):
    if self.step == 2:
        {fault}
    return original(self, ending=ending)
Replica.take_step = planted
"""
ALIKE = ("--comm-type=Allgather", "--n=3")
DEFECT = "raise ValueError('planted')"
KNOWN = "from atomo.errors import CodecError; raise CodecError('planted')"
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SILENCE = "import threading; threading.Event().wait()"


def broken(tmp_path: Path, sources: dict[int, str], *words: str) -> tuple[int, str]:
    """The exit code and the output of a job with faults in it, of which nothing is left."""
    environment = faults(tmp_path / "faults", sources)
    command = [*QUICK, f"--train-dir={tmp_path / 'run'}", *words]
    with started(command, tmp_path / "log", env=environment) as job:
        code = job.ends()
        until(lambda: not job.family(), "every process to end")
        return code, job.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "source", "where"),
    [
        (2, WORKER, "atomo: rank 2 (worker), step 3: Traceback"),
        (0, MASTER, "atomo: rank 0 (master), after step 2: Traceback"),
    ],
    ids=["worker", "master"],
)
def test_a_defect_ends_the_job_with_one_traceback(rank, source, where, tmp_path):
    code, output = broken(tmp_path, {rank: source.format(fault=DEFECT)})
    assert code == 1, output
    assert output.count(where) == output.count("Traceback") == 1, output
    assert output.count("ValueError: planted") == 1
    assert "step 2/9" in output
    assert "MPI_ABORT" not in output
    assert latest(tmp_path / "run") == 2
    assert finished(tmp_path / "run") is None


@pytest.mark.slow
def test_an_error_of_ours_is_one_line(tmp_path):
    code, output = broken(tmp_path, {1: WORKER.format(fault=KNOWN)}, "--n=2")
    assert code == 7, output
    lines = output.splitlines()
    assert "atomo: rank 1 (worker), step 3: planted" in lines
    at = lines.index("atomo: rank 1 (worker), step 3: planted")
    assert "Ended early" in lines[at + 1]
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_silent_worker_is_named_when_its_time_is_up(tmp_path):
    code, output = broken(tmp_path, {2: WORKER.format(fault=SILENCE)}, "--timeout=15")
    assert code == 5, output
    assert (
        "atomo: rank 0 (master), after step 2: "
        "rank 0 waited 15 s for the gradients of worker [2] at step 3; see --timeout"
    ) in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_silent_master_is_noticed_too(tmp_path):
    code, output = broken(tmp_path, {0: MASTER.format(fault=SILENCE)}, "--timeout=12", "--n=2")
    assert code == 5, output
    assert "atomo: rank 1 (worker), step 2: rank 1 waited 18 s for the master's order" in output


@pytest.mark.slow
def test_a_silent_rank_is_named_by_the_others(tmp_path):
    code, output = broken(tmp_path, {2: REPLICA.format(fault=SILENCE)}, "--timeout=12", *ALIKE)
    assert code == 5, output
    told = r"atomo: rank (0|1), after step 2: rank \1 waited 12 s for bucket 0 of step 3 of rank 2;"
    assert re.search(told, output), output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("rank", "source", "words"),
    [
        pytest.param(2, WORKER, (), id="worker"),
        pytest.param(0, MASTER, ("--n=2",), id="master", marks=pytest.mark.slow),
        pytest.param(1, REPLICA, ALIKE, id="replica", marks=pytest.mark.slow),
        pytest.param(0, REPLICA, ALIKE, id="keeper", marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_ends_the_job(rank, source, words, tmp_path):
    code, output = broken(tmp_path, {rank: source.format(fault=KILL)}, *words)
    assert code == 5, output
    assert f"process rank {rank}" in output
    assert "signal 9 (Killed)" in output
    assert latest(tmp_path / "run") == 2


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_job_and_keeps_the_last_checkpoint(tmp_path):
    command = [*QUICK, f"--train-dir={tmp_path / 'run'}"]
    common = {"network": "LeNet", "batch_size": 8, "code": "sgd"}
    run_threads(settings(tmp_path / "run", max_steps=2, **common))
    before = load(tmp_path / "run", 2)
    code, output = run([*command, "--lr=1e20"], tmp_path / "log")
    assert code == 6, output
    assert "atomo: rank 1 (worker), step 4: the loss of worker 1 at step 4 is nan" in output
    assert "Traceback" not in output
    assert "Ended early" in output
    assert latest(tmp_path / "run") == 2
    after = load(tmp_path / "run", 2)
    assert all(tensor.equal(after.model[name]) for name, tensor in before.model.items())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


@pytest.mark.slow
def test_who_no_longer_reads_the_output_ends_the_job(tmp_path):
    words = [*QUICK, f"--train-dir={tmp_path / 'run'}", "--epochs=1000", "--max-steps=100000"]
    words += ["--n=2"]
    shell = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'atomo', "
    shell += "*sys.argv[1:]], stdout=subprocess.PIPE); p.stdout.readline(); p.stdout.close(); "
    shell += "sys.exit(p.wait())"
    with started(words, tmp_path / "log", program=("-c", shell)) as job:
        assert job.ends() == 130, job.output
        until(lambda: not job.family(), "every process to end")
        assert "Traceback" not in job.output
