"""Exit codes and messages of invalid commands: the promised code, and one line with the reason."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from support.harness import run_threads, settings, together
from support.jobs import run

import atomo
from atomo.cli import main
from atomo.config.settings import Settings
from atomo.errors import AtomoError, CheckpointError, ConfigError
from atomo.training.checkpoints.checkpoint import latest, load
from atomo.training.rank import run_rank
from atomo.transports import network

QUICK = ["train", "--n=2", "--network=FC", "--batch-size=8", "--threads=1", "--evaluator=none"]
QUICK += ["--code=sgd"]
SHORT = {"n": 2, "network": "FC", "code": "sgd", "batch_size": 8, "threads": 1}
DAMAGED = "is damaged: its hash differs from its manifest"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Returns the one-line message of a command that exits with 2."""
    assert main(words) == 2
    told = capsys.readouterr()
    assert not told.out
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--network=resnet19", "atomo train: unknown network 'resnet19'; did you mean 'ResNet18'?"),
        ("--network=zzz", "known: "),
        ("--dataset=cifar11", "unknown data set 'cifar11'; did you mean 'Cifar10'? known: "),
        ("--code=svt", "'svt'; did you mean 'svd'? known: sgd"),
        ("--code=svd(rank=", "svd(rank="),
        ("--code=svd(rank=3) --svd-rank=4", "contradicts the flag that says rank=4"),
        ("--netwrok=LeNet", "unknown option '--netwrok'; did you mean '--network'? known: "),
        ("--n=1", "--n must be at least 2, got 1: 1 master and at least 1 worker"),
        ("--svd-rank=-3", "--svd-rank must be at least 0, got -3"),
        ("--num-aggregate=7", "--num-aggregate 7: a step has the gradients of 2 workers"),
        ("--hostfile=/nowhere/hosts", "--hostfile /nowhere/hosts: "),
        ("--mpi-args='", "--mpi-args"),
        ("--n=4000", "--n 4000: so many processes need more than 600 GB, and this host has "),
        ("--n=100000", "--n must be at most 4096, got 100000: every worker sends to the one"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_starts(words, told, capsys, tmp_path):
    assert told in refused(capsys, "train", f"--train-dir={tmp_path / 'run'}", *words.split())
    assert not (tmp_path / "run").exists()


def test_a_bad_line_of_a_host_file_is_named(capsys, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost slots=many\n")
    assert f"{hosts}:2: " in refused(capsys, "train", "--hostfile", str(hosts))
    hosts.write_text("localhost slots=2\n")
    told = refused(capsys, "train", "--hostfile", str(hosts), "--n=4")
    assert "--n 4, but the host file has slots for 2 processes" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "atomo evaluate: --model-dir is missing"),
        ("--model-dir=x --events=xml", "--events 'xml'; known: text, json"),
        ("--model-dir=x --eval-frq=2", "unknown option '--eval-frq'; did you mean '--eval-freq'?"),
        ("--model-dir=x --poll-interval=0", "--poll-interval"),
        ("--model-dir=x --poll-interval=inf", "--poll-interval must be at most 10000000, got inf"),
        ("--model-dir=x --idle-timeout=nan", "--idle-timeout must be at least 0, got nan"),
        ("--model-dir=x --threads=100000", "--threads must be at most 1024, got 100000"),
        ("--model-dir=x --threads=-1", "--threads must be at least 0, got -1"),
        ("--model-dir=x --eval-batch-size=0", "--eval-batch-size must be at least 1, got 0"),
    ],
)
def test_the_evaluator_refuses_what_it_cannot_do(words, told, capsys):
    assert told in refused(capsys, "evaluate", *words.split())


def test_an_unknown_command_is_refused(capsys):
    assert "unknown command 'trian'; did you mean 'train'? known: " in refused(capsys, "trian")
    assert main([]) == 2
    assert "usage: atomo COMMAND" in capsys.readouterr().out
    assert main(["--help"]) == 0


def test_the_release_is_the_one_that_is_installed(capsys):
    for word in ("--version", "-V"):
        assert main([word]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"atomo {atomo.__version__}, Python {platform.python_version()}")
        assert f", torch {torch.__version__.partition('+')[0]}" in told
    assert (
        f'\nversion = "{atomo.__version__}"\n'
        in (Path(__file__).parents[2] / "pyproject.toml").read_text()
    )


def ended_by(run: Settings, error: type[AtomoError]) -> None:
    """Plays all ranks in threads, until an error of this kind ends the job."""
    transports = network(run.n)
    bodies = [partial(run_rank, run, one, lambda event: None, lambda: False) for one in transports]
    with pytest.raises(error):
        together(bodies, lambda: transports[0].abort(1))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a CUDA device")
def test_a_gpu_that_is_not_there_is_missed(capsys, tmp_path):
    ended_by(settings(tmp_path / "run", **SHORT, enable_gpu="yes"), ConfigError)
    told = "atomo: rank 1 (worker), before the first step: --enable-gpu yes: PyTorch sees no CUDA"
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_data_set_is_named_once(tmp_path):
    words = [*QUICK, "--dataset=MNIST", f"--data-dir={tmp_path}", f"--train-dir={tmp_path / 'run'}"]
    code, output = run(words, tmp_path / "log")
    assert code == 3
    assert output.count(f"MNIST is not in {tmp_path}") == 1
    assert f"{sys.executable} -m atomo prepare --dataset MNIST" in output
    assert "Traceback" not in output
    assert "restart" not in output


def foreign(folder: Path) -> None:
    """A checkpoint of another network under this run's settings."""
    run_threads(settings(folder, **(SHORT | {"network": "LeNet"}), max_steps=1))
    manifest = folder / "step-00000001.json"
    manifest.write_text(manifest.read_text().replace('"LeNet"', '"FC"'))


def damaged(folder: Path) -> None:
    """A checkpoint with a byte changed."""
    run_threads(settings(folder, **SHORT, max_steps=1))
    model = folder / "step-00000001.model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)


def no_folder(folder: Path) -> None:
    """A file where the folder of the run should be."""
    folder.write_text("")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (foreign, "the checkpoint is of another model"),
        (damaged, DAMAGED),
        (no_folder, "rank 0 (master), before the first step: --train-dir"),
    ],
)
def test_a_folder_that_will_not_do_is_named_and_left_alone(prepare, told, capsys, tmp_path):
    prepare(tmp_path / "run")
    before = contents(tmp_path / "run")
    ended_by(settings(tmp_path / "run", **SHORT), CheckpointError)
    assert told in capsys.readouterr().err
    assert contents(tmp_path / "run") == before


@pytest.mark.slow
def test_what_ends_a_rank_ends_the_job_with_its_code(tmp_path):
    damaged(tmp_path / "run")
    code, output = run([*QUICK, f"--train-dir={tmp_path / 'run'}"], tmp_path / "log")
    assert code == CheckpointError.exit_code == 4, output
    assert DAMAGED in output
    assert "Traceback" not in output


def contents(folder: Path) -> dict[str, bytes]:
    """Returns every file in a folder; a file by itself."""
    return {str(p): p.read_bytes() for p in [folder, *folder.rglob("*")] if p.is_file()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Returns a folder on a disk of its own that holds two checkpoints and not three."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() or not mount:
        pytest.skip("mounting a small disk needs root and mount")
    command = [mount, "-t", "tmpfs", "-o", "size=26m", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this system does not let us mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(small_disk, tmp_path):
    # Weights and momentum take 9.8 MB a checkpoint.
    words = [*QUICK, f"--train-dir={small_disk / 'run'}", "--eval-freq=2", "--max-steps=9"]
    words += ["--timeout=30"]  # a third of it is spent on reading the last checkpoint
    code, output = run(words, tmp_path / "log")
    assert code == 4, output
    assert "cannot write" in output
    assert "No space left on device" in output
    assert "the checkpoints already written are intact" in output
    assert "Traceback" not in output
    assert latest(small_disk / "run") == 4
    assert load(small_disk / "run", 4).step == 4
