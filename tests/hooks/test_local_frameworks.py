"""Local steps in other people's training loops, in jobs of two processes over gloo."""

from pathlib import Path

import pytest
from hooks.ranks import run_ranks
from hooks.test_frameworks import needs

SCRIPT = Path(__file__).with_name("local_frameworks.py")


@pytest.mark.long
def test_ddp_keeps_gradients_and_buffers_local(tmp_path):
    run_ranks(SCRIPT, 2, tmp_path, "ddp")


@pytest.mark.long
@pytest.mark.slow
@needs("accelerate", "accelerate")
@needs("transformers", "text")
def test_accelerate_and_the_trainer_continue_in_the_middle_of_a_round(tmp_path):
    run_ranks(SCRIPT, 2, tmp_path, "accelerate", "trainer")


@pytest.mark.slow
@needs("lightning", "lightning")
def test_lightning_continues_in_the_middle_of_a_round(tmp_path):
    run_ranks(SCRIPT, 2, tmp_path, "lightning")


@pytest.mark.long
def test_replicas_of_shards_are_replicas_of_whole_models(tmp_path):
    run_ranks(SCRIPT.with_name("local_fsdp.py"), 4, tmp_path)
