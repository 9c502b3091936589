"""Jobs as users run them: mpirun, an evaluator, files, signals."""

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from support.harness import largest_difference, plain_sgd, run_threads, settings
from support.jobs import Job, alive, descendants, run, started, until
from support.networks import SMALL
from workloads.real_format import write_text

from atomo.training.checkpoints.checkpoint import Snapshot, finished, latest, load, steps

QUICK = ["train", "--network=FC", "--batch-size=8", "--evaluator=none", "--log-interval=1"]
QUICK += ["--threads=1"]  # the order of sums, and so the last bits, may depend on it


def train(folder: Path, *words: str) -> list[str]:
    """A short training run into `folder`."""
    return [*QUICK, f"--train-dir={folder}", *words]


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(one: Snapshot, other: Snapshot) -> bool:
    """True if two checkpoints are equal in every bit."""
    pairs = [(one.model, other.model), (one.optimizer, other.optimizer)]
    pairs += zip(one.workers, other.workers, strict=True)
    return all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in pairs)


def test_dense_gradients_over_mpi_equal_plain_sgd(tmp_path):
    chosen = settings(tmp_path / "run", code="sgd", network="FC", batch_size=12)
    words = ["--n=3", "--code", "sgd", "--batch-size=12", "--max-steps", "20"]
    code, output = run(train(tmp_path / "run", *words), tmp_path / "log")
    assert code == 0, output
    assert largest_difference(plain_sgd(chosen), load(tmp_path / "run", 20).model) < 1e-5


@pytest.mark.long
@pytest.mark.slow
def test_ranks_without_a_master_equal_plain_sgd(tmp_path):
    changes = {"n": 2, "code": "sgd", "batch_size": 8, "comm_type": "Allreduce", "fusion_mb": 0.5}
    chosen = settings(tmp_path / "run", network="FC", **changes)
    words = ["--n=2", "--code=sgd", "--max-steps=20", "--comm-type=Allreduce"]
    code, output = run(train(tmp_path / "run", *words, "--fusion-mb=0.5"), tmp_path / "log")
    assert code == 0, output
    assert largest_difference(plain_sgd(chosen), load(tmp_path / "run", 20).model) < 1e-5


@pytest.mark.long
def test_a_job_of_a_language_model_shows_perplexity_that_falls(tmp_path):
    write_text(tmp_path / "ptb")
    words = ["--task=language(hidden=32, layers=1, dropout=0.0, length=14, context=7)"]
    words += ["--optimizer=adam", "--lr=0.02", "--code=topk(ratio=0.1)", "--max-steps=40"]
    places = [f"--data-dir={tmp_path}", f"--train-dir={tmp_path / 'run'}", "--eval-freq=20"]
    code, output = run(["train", "--batch-size=8", *words, *places], tmp_path / "log")
    assert code == 0, output
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    early, late = (json.loads(line)["perplexity"] for line in lines)
    assert late < early < 12
    assert "final test perplexity" in output
    assert f"step 40: test perplexity {late:.4f} loss" in output


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_ends_ranks_without_a_master_at_the_same_step(tmp_path):
    words = ["--n=2", "--epochs=1000", "--comm-type=Allgather"]
    with started(train(tmp_path / "run", *words), tmp_path / "log") as job:
        job.says("step 5/")
        job.process.send_signal(signal.SIGTERM)
        assert job.ends() == 130, job.output
        assert "Interrupted" in job.output
    mark = finished(tmp_path / "run")
    assert mark is not None
    assert latest(tmp_path / "run") == mark.step == metrics(tmp_path / "run")[-1]["step"]
    assert len(load(tmp_path / "run", mark.step).workers) == 2


def documented_ranks() -> list[str]:
    """Returns the guide's line that starts ranks without a launcher, in this environment."""
    text = (Path(__file__).parents[2] / "docs" / "guides" / "several-hosts.md").read_text()
    [line] = re.findall(r"^(\S*mpirun .* -m atomo rank .*)$", text, re.MULTILINE)
    return [word.replace(".venv/", f"{sys.prefix}/") for word in shlex.split(line)]


@pytest.mark.slow
def test_mpi_and_threads_give_the_same_bits_and_so_do_updates_and_weights(tmp_path):
    words = ["--code=svd(selection=top)", "--svd-rank=2", "--max-steps=6", "--fusion-mb=0.5"]
    words += ["--down=updates"]  # the threads are one host, where weights come down
    [_, *options] = train(tmp_path / "mpi", *words)
    job = Job([*documented_ranks(), *options], tmp_path / "log")
    try:
        assert job.ends() == 0, job.output
    finally:
        job.kill()
    run_threads(
        settings(
            tmp_path / "threads", n=3, network="FC", batch_size=8, code="svd(selection=top)",
            svd_rank=2, max_steps=6, fusion_mb=0.5,
        )
    )  # fmt: skip
    assert same(load(tmp_path / "mpi", 6), load(tmp_path / "threads", 6))


@pytest.mark.long
@pytest.mark.slow
def test_torchrun_and_threads_give_the_same_bits(tmp_path):
    words = [*QUICK[1:], "--code=topk(ratio=0.05)", "--max-steps=6"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launcher += ["-m", "atomo", "rank", "--transport=torch"]  # and no --n: torchrun says it
    code, output = run(
        [*words, f"--train-dir={tmp_path / 'torch'}"], tmp_path / "log", program=launcher
    )
    assert code == 0, output
    assert "training ended at step 6" in output
    changes = {"code": "topk(ratio=0.05)", "max_steps": 6, "n": 2}
    run_threads(settings(tmp_path / "threads", network="FC", batch_size=8, **changes))
    assert same(load(tmp_path / "torch", 6), load(tmp_path / "threads", 6))


@pytest.mark.slow
def test_a_job_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path):
    words = ["--n=2", "--code=fp16", "--max-steps=30", "--eval-freq=5"]
    common = {"n": 2, "network": "FC", "batch_size": 8, "code": "fp16"}
    run_threads(settings(tmp_path / "whole", max_steps=30, eval_freq=5, **common))
    with started(train(tmp_path / "parts", *words), tmp_path / "log") as job:
        until(lambda: latest(tmp_path / "parts") or job.process.poll() is not None, "a checkpoint")
        assert job.process.poll() in (None, 0), job.output
        family = [job.process.pid, *descendants(job.process.pid)]
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        # Until its end a process holds the lock on the run's folder.
        until(lambda: not any(map(alive, family)), "the end of who was killed")
    stopped = latest(tmp_path / "parts")
    assert finished(tmp_path / "parts") is None
    code, output = run(train(tmp_path / "parts", *words), tmp_path / "log")
    assert code == 0, output
    if stopped != 30:
        assert f"continued at step {(stopped or 0) + 1}" in output
    assert same(load(tmp_path / "whole", 30), load(tmp_path / "parts", 30))
    assert [line["step"] for line in metrics(tmp_path / "parts")] == list(range(1, 31))


@pytest.mark.slow
def test_an_interrupt_writes_a_checkpoint_and_ends(tmp_path):
    """As SIGTERM does, of which the job without a master is told."""
    with started(train(tmp_path / "run", "--epochs=1000", "--n=2"), tmp_path / "log") as job:
        job.says("step 5/")
        family = descendants(job.process.pid)
        job.process.send_signal(signal.SIGINT)
        assert job.ends() == 130
        assert "writing a checkpoint" in job.output
        assert "Interrupted" in job.output
        assert not any(alive(pid) for pid in family)
    mark = finished(tmp_path / "run")
    assert mark is not None
    assert mark.reason == "interrupted"
    assert latest(tmp_path / "run") == mark.step == metrics(tmp_path / "run")[-1]["step"]


@pytest.mark.slow
def test_an_interrupt_before_the_first_step_ends_too(tmp_path):
    with started(train(tmp_path / "run", "--n=2"), tmp_path / "log") as job:
        until(lambda: descendants(job.process.pid), "mpirun")
        job.process.send_signal(signal.SIGINT)
        assert job.ends() == 130
        assert not any(alive(pid) for pid in descendants(job.process.pid))


def test_fewer_gradients_than_workers_close_a_step(tmp_path):
    limits = {"num_aggregate": 2, "max_steps": 12, "eval_freq": 6}
    run_threads(settings(tmp_path, n=4, network=SMALL, batch_size=8, code="fp16", **limits))
    assert {line["workers"] for line in metrics(tmp_path)} == {2}
    assert steps(tmp_path) == [6, 12]


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "last"), [({"epochs": 1, "max_steps": 1000}, 22), ({"max_steps": 7}, 7)]
)
def test_whichever_runs_out_first_ends_everybody(limits, last, tmp_path):
    run_threads(settings(tmp_path, network="FC", batch_size=32, **limits))
    mark = finished(tmp_path)
    assert mark is not None
    assert (mark.step, mark.reason) == (last, "done")


@pytest.mark.long
@pytest.mark.slow
def test_only_so_many_checkpoints_are_kept_and_a_finished_run_says_so(tmp_path):
    limits = {"n": 2, "max_steps": 7, "eval_freq": 2, "keep_checkpoints": 2}
    run_threads(settings(tmp_path / "run", network="FC", batch_size=8, **limits))
    words = ["--n=2", "--max-steps=7", "--eval-freq=2", "--keep-checkpoints=2"]
    assert steps(tmp_path / "run") == [6, 7]
    code, output = run(train(tmp_path / "run", *words), tmp_path / "log")
    assert code == 0
    assert "No steps were left" in output


@pytest.mark.long
@pytest.mark.slow
def test_starting_anew_sets_the_earlier_run_aside(tmp_path):
    run_threads(settings(tmp_path / "run", n=2, network="FC", batch_size=8, max_steps=2))
    words = train(tmp_path / "run", "--n=2", "--max-steps=2", "--resume=never")
    code, output = run(words, tmp_path / "log")
    assert code == 0
    assert "is now in" in output
    assert steps(tmp_path / "run.1") == steps(tmp_path / "run") == [2]


@pytest.mark.long
def test_the_scripts_work_from_elsewhere_and_through_the_published_options(tmp_path):
    """The command of the guides, small: every published option, both ways of writing it. Of two
    gradients one closes a step, and the other is late.
    """
    script = Path(__file__).parents[2] / "run_pytorch.sh"
    hosts = tmp_path / "hosts with a space"
    hosts.write_text("# the master first\nlocalhost\n")
    command = [
        "-c", f'cd "{tmp_path}" && exec bash "{script}" "$@"', "bash",
        "--n", "3", "--hostfile", str(hosts), "--lr=0.01", "--momentum", "0.9",
        "--network", "lenet", "--dataset", "digits", "--batch-size", "16",
        "--test-batch-size=200", "--comm-type", "Bcast", "--num-aggregate", "1",
        "--eval-freq", "4", "--epochs=10", "--max-steps", "6", "--svd-rank", "3",
        "--quantization-level", "4", "--bucket-size=512", "--code", "svd", "--enable-gpu=",
        "--lr-shrinkage=0.9", "--seed=3", "--log-interval", "2", "--train-dir", "runs/x",
    ]  # fmt: skip
    environment = Path(sys.executable).parent.parent
    with started(
        command,
        tmp_path / "log",
        program=("-c", "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])"),
        env={"ATOMO_VENV": str(environment), "ATOMO_EXTRAS": "dev"},
    ) as job:
        assert job.ends() == 0, job.output
        assert "final test accuracy" in job.output
    assert steps(tmp_path / "runs" / "x") == [4, 6]
    lines = (tmp_path / "runs/x/evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4, 6]
