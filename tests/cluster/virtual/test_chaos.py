"""Faults upon faults: a training comes through, with every step and gradient accounted for."""

import runpy
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return {**runpy.run_path(str(BENCHMARKS / "chaos_faults.py")),
            **runpy.run_path(str(BENCHMARKS / "chaos_verdict.py"))}  # fmt: skip


def test_a_training_comes_through_deaths_of_workers_and_of_its_master(possible, tmp_path):
    """Nothing is said of times: how much is done in a quarter of a minute is the machine's."""
    command = [
        sys.executable,
        BENCHMARKS / "chaos.py",
        "--minutes=0.25",
        "--workers=2",
        "--hosts=2",
    ]
    command += ["--faults=kill,master,torn", "--every=1", "--seed=3", "--least-steps=150"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no hang" in done.stdout
    assert "broken" not in done.stdout


def test_the_same_seed_draws_the_same_faults(parts):
    names = [*parts["FAULTS"]]
    first, again, other = ([*islice(parts["drawn"](seed, names), 200)] for seed in (7, 7, 8))
    assert first == again != other
    assert {name for name, _ in first} == {*names}  # each of them comes


def test_seconds_of_restarts_are_in_no_goodput_of_faults_that_were_survived(parts):
    def done(at: float, overcome: float, restarted: bool) -> SimpleNamespace:
        return SimpleNamespace(at=at, overcome=overcome, restarted=restarted)

    faults = [done(2, 3, False), done(4, 6, True), done(8, 9, True)]
    assert parts["survived"]((0, 10), faults) == [(0, 4), (6, 8), (9, 10)]
    assert parts["survived"]((0, 10), []) == [(0, 10)]


def test_a_gradient_that_is_nowhere_is_found(parts):
    whole = {"asked": 2, "workers": 1, "late": 0, "lost": 0, "under_way": 1}
    lines = [{"step": 1, **whole}, {"step": 2, **whole, "workers": 2}, {"step": 3, **whole}]
    assert parts["unequal"](lines) == [3]
