"""The hook in place of FSDP2's reduce-scatter, on four ranks without replicas."""

from pathlib import Path

import pytest
from hooks.ranks import run_ranks

RANKS = Path(__file__).with_name("scatter_ranks.py")


@pytest.mark.slow
def test_four_ranks_share_one_model(tmp_path):
    run_ranks(RANKS, 4, tmp_path)
