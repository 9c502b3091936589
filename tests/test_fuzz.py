"""Mutated frames of every codec decode within bounds or are refused."""

import subprocess
import sys
from pathlib import Path

FUZZER = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


def test_two_hundred_thousand_mutants_are_refused_or_decoded(tmp_path):
    command = [sys.executable, FUZZER, "--frames=200000", "--seed=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200000 frames, 0 failures" in done.stdout
