"""The hook for DistributedDataParallel, in jobs of real processes over gloo."""

from pathlib import Path

import pytest
import torch
from hooks.ranks import run_ranks
from torch import nn

from atomo.codecs import make_codec
from atomo.errors import ConfigError
from atomo.hooks.adapter.chunks import Codecs, bucket_of
from atomo.hooks.ddp import check_bucket, stride_in
from atomo.hooks.options.checks import check_model

SCENARIOS = Path(__file__).with_name("scenarios.py")
RESUMING = Path(__file__).with_name("resuming.py")
DOORS = Path(__file__).with_name("doors.py")


@pytest.mark.slow
def test_two_ranks_with_all_that_ddp_can_do(tmp_path):
    names = ["gathers", "equals_ddp", "trains", "layouts", "channels_last", "unused", "joins"]
    errors = ["not_finite", "too_late"]  # come out of backward on all ranks
    run_ranks(SCENARIOS, 2, tmp_path, *names, "amp", "momentum", "methods", "resumes", *errors)


@pytest.mark.long
@pytest.mark.slow
def test_three_ranks(tmp_path):
    """Three ranks: two wait for a third, or send their addends to it in one sum."""
    run_ranks(SCENARIOS, 3, tmp_path, "gathers", "equals_ddp", "trains", "joins", "resumes")


@pytest.mark.long
@pytest.mark.slow
def test_two_hosts_of_two_ranks(tmp_path):
    run_ranks(SCENARIOS, 4, tmp_path, "hierarchical", "momentum")


@pytest.mark.long
def test_a_resumed_run_of_any_codec_has_the_bits_of_one_that_never_stopped(tmp_path):
    run_ranks(RESUMING, 2, tmp_path, "every")


@pytest.mark.long
def test_a_resume_in_other_settings(tmp_path):
    run_ranks(RESUMING, 4, tmp_path, "settings")


@pytest.mark.long
def test_what_ranks_get_wrong_is_told_in_time_and_in_few_words(tmp_path):
    names = ["refused", "other_state", "differ", "absent", "unregistered", "gathers_alone"]
    run_ranks(DOORS, 2, tmp_path, *names)


def test_the_bucket_of_a_compiled_reducer_is_refused():
    with pytest.raises(ConfigError, match="optimize_ddp"):
        check_bucket((torch.ones(3),))


def test_only_a_wrapped_model_is_hooked():
    with pytest.raises(ConfigError, match="DistributedDataParallel is needed, not a Linear"):
        check_model(nn.Linear(2, 2))


def test_gradients_lie_as_their_parameters():
    weight = torch.ones(4, 3, 2, 2)
    assert stride_in(weight.shape, weight.stride()) == weight.stride()
    last = weight.to(memory_format=torch.channels_last)
    assert stride_in(last.shape, last.stride()) == last.stride() != weight.stride()
    assert stride_in(torch.Size([6, 2]), (4, 1)) == (2, 1)


def test_a_chunk_of_a_hook_is_a_bucket():
    parameters = ("weight", torch.Size((3, 4))), ("bias", torch.Size((3,)))
    bucket = bucket_of(2, parameters, Codecs(make_codec("topk")))
    assert (bucket.size, [part.codec.id for part in bucket.parts]) == (15, ["topk", "sgd"])
