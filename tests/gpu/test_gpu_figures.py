"""`benchmarks/gpu.py` in Triton's interpreter: when there is a GPU, one command has all figures."""

import runpy
from pathlib import Path

import pytest
from support import backends
from torch import distributed as dist

pytestmark = pytest.mark.long

assert backends.TRITON  # which has Triton interpret
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_every_row_runs_and_one_that_fails_costs_no_other(monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = runpy.run_path(str(BENCHMARKS / "gpu.py"))
    assert script["checked"](600, "cpu")
    try:
        well = script["rehearse"](600, True)
    finally:
        dist.destroy_process_group()
    assert well, capsys.readouterr().out
    bad = script["Case"]("bad", 1.0, lambda: 1 / 0)
    assert not script["print_row"](bad, lambda case: str(case.run()))
    assert "failed: ZeroDivisionError" in capsys.readouterr().out
