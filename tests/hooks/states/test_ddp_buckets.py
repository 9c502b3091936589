"""DDP has the buckets that a partition into messages says."""

from itertools import pairwise

import pytest
import torch
from hooks.ranks import alone
from torch import Size, Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.errors import ConfigError
from atomo.options.grouping import grouping


def network() -> nn.Module:
    layers = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 64, bias=False), nn.Linear(64, 5)
    return nn.Sequential(*layers)


def buckets_of(model: nn.Module, caps: list[float]) -> list[list[Size]]:
    """Returns the shapes in each bucket of the second backward pass: DDP rebuilds its buckets after
    the first.
    """
    ddp = DistributedDataParallel(model, bucket_cap_mb_list=caps)
    seen: list[list[Size]] = []

    def hook(state: object, bucket) -> Future[Tensor]:
        seen.append([parameter.shape for parameter in bucket.parameters()])
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)
    for _ in range(2):
        seen.clear()
        ddp(torch.ones(4, 32)).sum().backward()
    return seen


@pytest.mark.parametrize("fusion", ["layer", "one", "count:3", "bytes:0.01", "cuts:1,4,7"])
def test_ddp_has_these_buckets(fusion):
    model = network()
    shapes = [parameter.shape for parameter in model.parameters()][::-1]
    cuts = grouping(fusion).cuts([4 * shape.numel() for shape in shapes])
    with alone():
        found = buckets_of(model, atomo.bucket_cap_mb_list(model, fusion))
    assert found == [shapes[start:stop] for start, stop in pairwise((0, *cuts))]


def test_caps_are_of_what_is_trained_and_in_its_dtype():
    model = network().half()
    model[3].requires_grad_(False)
    caps = atomo.bucket_cap_mb_list(model, "cuts:1,5")
    assert [2**20 * cap for cap in caps] == [2 * 64 * 64, 2 * (64 + 64 + 64 + 64 * 32)]


def test_what_ddp_keeps_apart_or_nobody_knows_is_refused():
    model = network()
    model[0].half()
    with pytest.raises(ConfigError, match=r"torch\.float16 on cpu, torch\.float32 on cpu: DDP"):
        atomo.bucket_cap_mb_list(model, "one")
    with pytest.raises(ConfigError, match="found where a job starts"):
        atomo.bucket_cap_mb_list(network(), "auto")
