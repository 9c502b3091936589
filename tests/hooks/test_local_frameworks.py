"""Local steps in other people's training loops, in jobs of two processes over gloo."""

from pathlib import Path

import pytest
from hooks.ranks import run_ranks

SCRIPT = Path(__file__).with_name("local_frameworks.py")


@pytest.mark.slow
def test_ddp_keeps_gradients_and_buffers_local(tmp_path):
    run_ranks(SCRIPT, 2, tmp_path, "ddp")
