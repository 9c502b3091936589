"""The hook for FSDP2, between two replicas of two shards."""

from pathlib import Path

import pytest
from hooks.ranks import run_ranks

RANKS = Path(__file__).with_name("fsdp_ranks.py")


@pytest.mark.long
def test_two_replicas_of_two_shards(tmp_path):
    run_ranks(RANKS, 4, tmp_path)
