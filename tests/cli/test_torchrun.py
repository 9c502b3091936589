"""Jobs of torchrun: an evicted host, a restart with another number of ranks, and error files."""

import json
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.jobs import Job
from support.run_folders import parse_page, write_run
from torch.distributed.run import get_args_parser

from atomo.cli import rank
from atomo.cli.rank import main, split_options
from atomo.errors import ConfigError
from atomo.launch.cli_settings import parse_cli_settings
from atomo.training.checkpoints.checkpoint import latest
from atomo.training.folder.finished_marker import finished
from atomo.training.job.events import RankTimes, Started

ROOT = Path(__file__).parents[2]
STARTED = Started("LeNet", "Digits", "svd", "residual", 2, 10, 20, 5, 1, 20, "x")
QUICK = ["--network=FC", "--batch-size=8", "--threads=1", "--evaluator=none", "--log-interval=1"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[Job]]:
    """Two agents of an elastic job on this host, each with two ranks."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2"]
    words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=7"]
    words += ["--local-addr=127.0.0.1", "--max-restarts=3"]
    rank = ["-m", "atomo", "rank", "--transport=torch", *QUICK, "--epochs=1000"]
    rank.append(f"--train-dir={tmp_path / 'run'}")
    jobs = [
        Job([*words, f"--rdzv-conf=is_host={host}", *rank], tmp_path / f"agent{host}")
        for host in (1, 0)  # the first keeps the store of the rendezvous
    ]
    yield jobs
    for job in jobs:
        job.kill()


def test_the_commands_of_the_guide_are_understood():
    text = (ROOT / "docs" / "guides" / "torchrun.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^\.venv/bin/torchrun (.*)$", text, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        launch = get_args_parser().parse_args(shlex.split(line))
        assert (launch.training_script, launch.module) == ("atomo", True)
        assert launch.training_script_args[:1] == ["rank"]
        name, options = split_options(launch.training_script_args[1:])
        assert name == "torch"
        assert parse_cli_settings(["--n=2", *options], "rank", "").settings.train_dir


@pytest.mark.long
def test_an_evicted_host_leaves_a_checkpoint_and_the_others_go_on(agents, tmp_path):
    first, second = agents
    first.says("1 master + 3 workers")
    first.says("step 5/")
    second.process.send_signal(signal.SIGTERM)  # as Kubernetes does to a pod, here without rank 0
    assert second.ends() != 0
    first.says("continued at step")
    stopped = latest(tmp_path / "run")
    assert stopped is not None
    assert stopped >= 5
    assert f"continued at step {stopped + 1}" in first.output
    assert "1 master + 1 worker" in first.output
    first.says(f"step {stopped + 3}/")
    first.process.send_signal(signal.SIGTERM)
    assert first.ends() != 0  # so that its controller starts it again
    mark = finished(tmp_path / "run")
    assert mark is not None
    assert latest(tmp_path / "run") == mark.step > stopped


def test_an_error_is_left_for_torchrun(monkeypatch, tmp_path, capsys):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(ConfigError, match="--train-dir is missing"):
        main(["--transport=torch", "--n=2"])
    record = json.loads(path.read_text())["message"]
    assert record["message"] == (
        "ConfigError: --train-dir is missing: the folder of the run, the same on every rank"
    )
    assert "in run\n" in record["extraInfo"]["py_callstack"]
    assert int(record["extraInfo"]["timestamp"]) > 0
    with pytest.raises(ConfigError, match="unknown option"):
        main(["--transport=torch", "--n=2", "--no-such-option"])
    assert "--train-dir is missing" in path.read_text()  # the first error


@pytest.mark.parametrize("exit_code", [0, 6])
def test_rank_0_leaves_the_messages_and_the_page_of_its_run(monkeypatch, tmp_path, exit_code):
    folder = write_run(tmp_path / "run", end="")

    def run_rank(settings, transport, tell, interrupted, failed, hosts):
        tell(STARTED)
        tell(RankTimes(20, [1, 2], [0.1, 0.3], [0.0, 0.1], *[[0.0, 0.0]] * 3))
        if exit_code:
            failed(exit_code)
            # The process ends here, without a return from this call.
            assert (folder / "report.html").exists()

    transport = SimpleNamespace(rank=0, end_requested=lambda: False)
    monkeypatch.setattr(rank, "connect", lambda name: transport)
    monkeypatch.setattr(rank, "run_rank", run_rank)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert main(["--transport=torch", "--n=3", f"--train-dir={folder}"]) == 0
    text = parse_page((folder / "report.html").read_text()).text
    assert "Rank 2 computed and encoded longest: 400 ms a step" in text
    assert ("Ended early, with exit code 6," in text) == (exit_code == 6)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["Launched", "Started", "RankTimes", "Exited"]


@pytest.mark.slow
def test_torchrun_names_the_rank_that_failed(tmp_path):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += ["-m", "atomo", "rank", "--transport=torch", *QUICK, "--max-steps=9", "--lr=1e30"]
    job = Job([*words, f"--train-dir={tmp_path / 'run'}"], tmp_path / "log")
    try:
        assert job.ends() == 1
    finally:
        job.kill()
    report = job.output.partition("Root Cause")[2]
    assert "Diverged: " in report
    assert "exitcode  : 6" in report
