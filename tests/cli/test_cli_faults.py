"""Whatever goes wrong is said once and leaves nothing running: workers are left behind, where the
others can go on; else the whole job ends, and starts again where that may help.
"""

import json
import math
import re
from pathlib import Path

import pytest
from support.harness import run_threads, settings
from support.jobs import faults, run, started, until

from atomo.training.checkpoints.checkpoint import finished, latest, load

QUICK = ["train", "--network=LeNet", "--batch-size=8", "--threads=1", "--evaluator=none"]
QUICK += ["--log-interval=1", "--code=sgd", "--max-steps=9", "--eval-freq=2", "--max-restarts=0"]

WORKER = """
from atomo.training.loop.worker import Worker
original = Worker._take_step
def planted(self, step, *times):
    if step == 3:
        {fault}
    original(self, step, *times)
Worker._take_step = planted
"""
MASTER = """
from atomo.training.loop.master import Master
original = Master._take_step
def planted(self, round_):
    if round_.last == 3:
        {fault}
    return original(self, round_)
Master._take_step = planted
"""
REPLICA = """
from atomo.training.loop.replica import TrainingReplica
original = TrainingReplica.take_step
def planted(self, *, ending, saving):
    if self.step == 2:
        {fault}
    return original(self, ending=ending, saving=saving)
TrainingReplica.take_step = planted
"""
ALIKE = ("--comm-type=Allgather", "--n=2")
DEFECT = "raise ValueError('planted')"
KNOWN = "from atomo.errors import CodecError; raise CodecError('planted')"
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SILENCE = "import threading; threading.Event().wait()"
STOP = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
QUIT = "raise SystemExit(3)"
LONG = "raise ValueError('x' * 5_000_000)"
MID_SEND = """
from atomo.exchange.parameter_server.uplink import Uplink
original = Uplink._send
def planted(self, bucket, frame):
    original(self, bucket, frame)
    if self._step == 3:
        {fault}
Uplink._send = planted
"""
IN_GATHER = """
from atomo.exchange.collectives.direct import Direct
original = Direct.gather
def planted(self, data, what):
    if what.endswith("step {step}") and what.startswith("{what}"):
        {fault}
    return original(self, data, what)
Direct.gather = planted
"""
IN_CHECKPOINT = """
from atomo.exchange import Client
def planted(self, state):
    {fault}
Client.send_state = planted
"""
IN_FORWARD = """
import torch
from atomo.training.step.forward_backward import ForwardBackward
run, forward, at = ForwardBackward.run, torch.nn.Linear.forward, [0]
def noted(self, step):
    at[0] = step
    return run(self, step)
def planted(self, x):
    if at[0] == 3:
        {fault}
    return forward(self, x)
ForwardBackward.run, torch.nn.Linear.forward = noted, planted
"""
IN_ENCODING = """
from atomo.exchange.parameter_server.uplink import Uplink
original = Uplink._compress
def planted(self, *given):
    frame = original(self, *given)
    if self._step == 4:
        {fault}
    return frame
Uplink._compress = planted
"""
BEFORE_THE_MASTER_IS_DONE = """
from atomo.exchange import Client
original = Client.report
def planted(self, report):
    original(self, report)
    if self._step == 5:
        {fault}
Client.report = planted
"""
IN_WAITING = """
from atomo.exchange import Client
original, asked = Client.pull, []
def planted(self):
    asked.append(None)
    if len(asked) == 6:
        {fault}
    return original(self)
Client.pull = planted
"""


def broken(tmp_path: Path, sources: dict[int, str], *words: str) -> tuple[int, str]:
    """Returns the exit code and the output of a job with faults in it, of which nothing is left."""
    environment = faults(tmp_path / "faults", sources)
    command = [*QUICK, f"--train-dir={tmp_path / 'run'}", *words]
    with started(command, tmp_path / "log", env=environment) as job:
        code = job.ends()
        until(lambda: not job.family(), "every process to end")
        return code, job.output


def left_behind(tmp_path: Path, output: str, lost: int) -> None:
    """Checks that a run went to its end without `lost` workers, and lost none of their gradients
    but those that they were at.
    """
    assert "training ended at step 9: done" in output, output
    assert "other weights" not in output
    lines = [*map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())]
    assert [line["step"] for line in lines] == [*range(1, 10)]
    assert all(math.isfinite(line["loss"]) for line in lines)
    told = re.findall(r"(?:worker|rank) (\d) is gone", output)
    assert len({*told}) == len(told) == lost, output
    before = 0
    for line in lines:
        became = line["workers"] + line["late"] + line["lost"] + line["under_way"]
        assert before + line["asked"] == became, line
        before = line["under_way"]
    assert before == 0
    assert latest(tmp_path / "run") == 9


@pytest.mark.slow
def test_a_defect_of_the_master_ends_the_job_with_one_traceback(tmp_path):
    code, output = broken(tmp_path, {0: MASTER.format(fault=DEFECT)}, "--n=2")
    assert code == 1, output
    where = "atomo: rank 0 (master), after step 2: Traceback"
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
    # A line about a checkpoint goes through another pipe, and may arrive in between.
    assert any("Ended early" in line for line in lines[at + 1 :])
    assert "Traceback" not in output


@pytest.mark.slow
def test_workers_that_are_stopped_or_killed_in_the_middle_of_something_are_left_behind(tmp_path):
    """One has sent a part of its gradient, one is asked for its state; the way down has the third
    repeat all steps, and its weights compared at the end.
    """
    sources = {1: MID_SEND.format(fault=STOP), 2: IN_CHECKPOINT.format(fault=KILL)}
    words = ["--n=4", "--timeout=15", "--min-workers=1", "--down=updates", "--fusion=layer"]
    code, output = broken(tmp_path, sources, *words)
    assert code == 0, output
    assert "worker 1 did not answer for 15 s, the --timeout, and was killed" in output
    left_behind(tmp_path, output, lost=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("faults", "words"),
    [
        pytest.param([QUIT, KILL, INTERRUPT, LONG], ("--timeout=300",), id="ended"),
        pytest.param([STOP] * 4, ("--timeout=15",), id="stopped", marks=pytest.mark.long),
    ],
)
def test_a_worker_may_be_lost_wherever_it_is_in_a_step(faults, words, tmp_path):
    """One in each place; what is in the middle of a message or a checkpoint is above. However it
    ends, nobody waits for it: a single wait would be told.
    """
    places = IN_FORWARD, IN_ENCODING, BEFORE_THE_MASTER_IS_DONE, IN_WAITING
    sources = {
        rank: source.format(fault=fault)
        for rank, (source, fault) in enumerate(zip(places, faults, strict=True), 1)
    }
    given = ["--n=6", "--min-workers=1", "--down=updates", "--code=qsgd", *words]
    code, output = broken(tmp_path, sources, *given)
    assert code == 0, output
    left_behind(tmp_path, output, lost=4)
    if STOP not in faults:
        assert "did not answer" not in output
        assert "atomo: lost rank 1 (worker), step 3: Traceback" in output
        assert "(worker), step 5: this process was interrupted (SIGINT)" in output


@pytest.mark.long
@pytest.mark.slow
def test_a_defect_takes_its_worker_alone_and_with_too_few_left_a_checkpoint_is_written(tmp_path):
    """A job that is started again continues from the checkpoint, with all workers."""
    first = str(tmp_path / "first")
    fault = f"import os\n        if not os.path.exists({first!r}): os.mkdir({first!r}); {DEFECT}"
    words = ["--min-workers=2", "--eval-freq=100", "--max-restarts=1"]
    code, output = broken(tmp_path, {2: WORKER.format(fault=fault)}, *words)
    assert code == 0, output
    where = "atomo: lost rank 2 (worker), step 3: Traceback"
    assert output.count(where) == output.count("Traceback") == 1, output
    told = "worker [2] of 2 died, which leaves 1; --min-workers is 2; the checkpoint of step 2"
    assert told in output
    assert "atomo: restart 1 of 1, from the checkpoint of step 2" in output
    left_behind(tmp_path, output, lost=1)


@pytest.mark.long
def test_ranks_without_a_master_go_on_without_those_that_are_stopped_or_killed(tmp_path):
    """One rank dies before its step, one when it has the mean and has not yet reported it."""
    report = IN_GATHER.format(what="the report", step=6, fault=KILL)
    sources = {1: REPLICA.format(fault=STOP), 3: report}
    words = ["--comm-type=Allreduce", "--n=4", "--min-workers=1", "--fusion=layer", "--timeout=12"]
    code, output = broken(tmp_path, sources, *words)
    assert code == 0, output
    assert re.search(r"rank 0 waited 12 s for .*; stopped or stuck ranks are killed", output)
    left_behind(tmp_path, output, lost=2)


@pytest.mark.slow
def test_a_silent_master_is_noticed_too(tmp_path):
    code, output = broken(tmp_path, {0: MASTER.format(fault=SILENCE)}, "--timeout=12", "--n=2")
    assert code == 5, output
    assert "atomo: rank 1 (worker), step 2: rank 1 waited 18 s for the master's command" in output


@pytest.mark.long
@pytest.mark.slow
def test_a_silent_rank_is_named_by_the_others(tmp_path):
    code, output = broken(tmp_path, {1: REPLICA.format(fault=SILENCE)}, "--timeout=12", *ALIKE)
    assert code == 5, output
    told = "atomo: rank 0, after step 2: rank 0 waited 12 s for bucket 0 of step 3 of rank 1;"
    assert told in output, output
    assert "Traceback" not in output


@pytest.mark.long
def test_a_killed_worker_is_left_behind(tmp_path):
    code, output = broken(tmp_path, {2: WORKER.format(fault=KILL)})
    assert code == 0, output
    left_behind(tmp_path, output, lost=1)
    assert re.search(r"gradients +│ 12: 11 used, 0 late, 1 lost +│", output), output


@pytest.mark.long(cases=("keeper",))
@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param(MASTER, ("--n=2",), id="master"),
        pytest.param(REPLICA, ALIKE, id="keeper"),
    ],
)
def test_a_killed_leader_ends_the_job(source, words, tmp_path):
    code, output = broken(tmp_path, {0: source.format(fault=KILL)}, *words)
    assert code == 5, output
    assert "rank 0 is gone" in output, output
    assert latest(tmp_path / "run") == 2


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_job_and_keeps_the_last_checkpoint(tmp_path):
    command = [*QUICK, f"--train-dir={tmp_path / 'run'}", "--n=2"]
    common = {"n": 2, "network": "LeNet", "batch_size": 8, "code": "sgd"}
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
