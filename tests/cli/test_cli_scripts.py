"""The scripts in the root folder pass all arguments on, from any folder and by any path."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    "run_pytorch.sh": "train",
    "evaluate_pytorch.sh": "evaluate",
    "data_prepare.sh": "prepare",
}
ECHO = '#!/bin/sh\nprintf "<%s>" "$@"\n'  # a stand-in for the environment's Python


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Returns the scripts at a path with spaces and quotes, with an environment that is
    up to date.
    """
    folder = tmp_path / "my 'own' $HOME checkout"
    (folder / "tools").mkdir(parents=True)
    for name in [*SCRIPTS, "pyproject.toml", "tools/environment.sh"]:
        shutil.copy(ROOT / name, folder / name)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(ECHO)
    python.chmod(0o755)
    project = (folder / "pyproject.toml").read_bytes()
    told = subprocess.run(["cksum"], input=project, capture_output=True, check=True).stdout.decode()
    (folder / ".venv" / "installed").write_text(told.strip() + " \n")
    return folder


def call(script: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ATOMO_")}
    return subprocess.run(
        ["bash", script, *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", [*SCRIPTS])
def test_arguments_arrive_as_they_were_given(name, checkout, tmp_path):
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    words = ["--train-dir", "a folder/*", "--code=svd(rank=3)", "--enable-gpu=", "", "$HOME `id`"]
    done = call(checkout / name, *words, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"<{w}>" for w in ["-m", "atomo", SCRIPTS[name], *words])
    assert done.stderr == ""
    relative = Path("..") / checkout.name / name
    assert call(relative, *words, cwd=elsewhere).stdout == done.stdout


def test_the_exit_code_is_that_of_the_command(checkout):
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 6\n")
    assert call(checkout / "run_pytorch.sh", cwd=checkout).returncode == 6


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    scripts = [*SCRIPTS, "tests/run.sh", "tools/environment.sh"]
    done = subprocess.run(
        ["shellcheck", "-x", "-s", "bash", *scripts],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_module_is_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "atomo", "train", "--n", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("atomo train: --n must be at least 2, got 1")
