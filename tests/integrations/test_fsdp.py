"""The hook for FSDP2, between two replicas of two shards."""

from pathlib import Path

import pytest
import torch
from integrations.ranks import alone, run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard

import atomo
from atomo.errors import CheckpointError, ConfigError
from atomo.integrations.fsdp_checks import check_choice, sharded_parameters
from atomo.integrations.making import Choice

RANKS = Path(__file__).with_name("fsdp_ranks.py")


@pytest.mark.slow
def test_two_replicas_of_two_shards(tmp_path):
    run_ranks(RANKS, 4, tmp_path)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice("powersgd(rank=2)"), "sums factors of whole matrices"),
        (Choice("dgc", "dgc(clip=1.0)", 0.9), "clips by the norm of the whole"),
    ],
)
def test_what_needs_the_whole_gradient_is_refused(choice, words):
    with pytest.raises(ConfigError, match=words):
        check_choice(choice)


def test_a_model_that_is_not_sharded_is_refused():
    with pytest.raises(ConfigError, match="fully_shard was called on is needed, not a Linear"):
        sharded_parameters(nn.Linear(2, 2))


class OneReplica:
    """A layer on one rank, with the hook."""

    def __init__(self, code: str = "topk(ratio=0.25)") -> None:
        self.model = nn.Linear(8, 4, bias=False)
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        fully_shard(self.model, mesh=mesh["shard"])
        self.exchange = atomo.fsdp_hook(self.model, code, mesh["replicate"])


def test_fsdp1_is_refused():
    with alone():
        wrapped = FullyShardedDataParallel(
            nn.Linear(2, 2), device_id="cpu", sharding_strategy=ShardingStrategy.NO_SHARD
        )
        with pytest.raises(ConfigError, match=r"\(FSDP1\), which is not served: shard it with"):
            sharded_parameters(nn.Sequential(wrapped))


def test_what_came_to_need_a_gradient_is_an_error():
    with alone():
        one = OneReplica()
        one.model.weight = nn.Parameter(one.model.weight.detach() * 2)
        with pytest.raises(ConfigError, match="32 entries here has a gradient, and fsdp_hook has"):
            one.model(torch.ones(2, 8)).sum().backward()


def test_a_state_of_another_kind_is_refused():
    with alone(), pytest.raises(CheckpointError, match="format None; this one reads"):
        OneReplica().exchange.load_state_dict({"state": {}})
