"""Mutated frames, of every codec and of a training step, are taken within bounds or refused."""

import subprocess
import sys
from pathlib import Path

FUZZER = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


def test_thirty_thousand_mutants_are_refused_or_taken(tmp_path):
    command = [sys.executable, FUZZER, "--frames=30000", "--seed=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30000 frames, 0 failures" in done.stdout
