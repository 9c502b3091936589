"""Mutated frames, of every codec and of a training step, are taken within bounds or refused."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


@pytest.mark.slow
def test_mutants_are_refused_or_taken(tmp_path):
    frames = 6000
    command = [sys.executable, FUZZER, f"--frames={frames}", "--seed=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{frames} frames, 0 failures" in done.stdout
