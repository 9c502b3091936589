"""Dense inside a host, compressed between hosts: whole runs over threads."""

from pathlib import Path

import pytest
import torch
from support.harness import largest_difference, plain_sgd, run_threads, settings
from support.networks import SMALL, SMALL_MB
from support.selection import slow_but
from torch import Size

from atomo.codecs import make_codec
from atomo.config.settings import Settings
from atomo.errors import CheckpointError, ConfigError
from atomo.exchange.collectives.hosts import Hosts, hosts_named, rails_of
from atomo.fusion import plan
from atomo.options.grouping import grouping
from atomo.training.checkpoints.checkpoint import Snapshot, load
from atomo.training.checkpoints.resume import hosts_in

WAYS = ["Allgather", "Allreduce", "PowerSGD", "ACPSGD"]


def ended(chosen: Settings) -> Snapshot:
    """Returns the last checkpoint of a run, before which rank 0 saw that all have the
    same weights.
    """
    run_threads(chosen)
    return load(Path(chosen.train_dir), chosen.max_steps)


def same(first: Snapshot, second: Snapshot) -> bool:
    pairs = [(first.model, second.model), (first.optimizer, second.optimizer)]
    pairs += zip(first.workers, second.workers, strict=True)
    return all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in pairs)


@pytest.mark.long(
    cases=(
        "ACPSGD-4",
        "Allgather-3",
        "Allgather-4-2",
        "Allreduce-3",
        "PowerSGD-4",
    )
)
@pytest.mark.parametrize(("n", "size"), [(3, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("comm_type", slow_but(["Allgather"], WAYS))
def test_dense_equals_plain_sgd(comm_type, n, size, tmp_path):
    """Holds for hosts with different numbers of ranks as well."""
    chosen = settings(
        tmp_path, n=n, code="sgd", comm_type=comm_type, hierarchical=str(size),
        batch_size=24 // n, max_steps=4, fusion_mb=0.1,
    )  # fmt: skip
    assert largest_difference(plain_sgd(chosen), ended(chosen).model) < 1e-5


CASES = [
    {"comm_type": "PowerSGD", "svd_rank": 2},  # memories, and factors of either rail
    {"comm_type": "Allgather", "code": "topk(ratio=0.1)"},
    {"comm_type": "Allgather", "code": "dgc(ratio=0.01)", "memory": "dgc(clip=1.0)"},  # of the norm
    {"comm_type": "Allgather", "code": "terngrad(scale=shared)"},  # agrees on scales
    {"comm_type": "Allreduce", "code": "bf16"},
    {"comm_type": "ACPSGD", "svd_rank": 2},
    {"comm_type": "Allgather", "code": "efsignsgd", "memory": "residual(units=update)"},
]


@pytest.mark.long(
    cases=(
        "{'comm_type': 'ACPSGD",
        "{'comm_type': 'Allgather', 'code': 'dgc",
        "{'comm_type': 'Allgather', 'code': 'efsignsgd",
        "{'comm_type': 'Allgather', 'code': 'terngrad",
        "{'comm_type': 'PowerSGD",
    )
)
@pytest.mark.parametrize("case", slow_but(CASES[:1], CASES), ids=str)
def test_a_resumed_run_equals_an_uninterrupted_one(case, tmp_path):
    options = {
        "n": 4,
        "hierarchical": "2",
        "network": SMALL,
        "fusion_mb": SMALL_MB,
        "batch_size": 8,
    }
    options |= {"eval_freq": 2, **case}
    whole = ended(settings(tmp_path / "whole", max_steps=4, **options))
    run_threads(settings(tmp_path / "parts", max_steps=2, **options))
    assert same(whole, ended(settings(tmp_path / "parts", max_steps=4, **options)))


@pytest.mark.slow
def test_what_is_kept_is_with_who_compresses_it_once_a_host(tmp_path):
    chosen = settings(
        tmp_path, n=4, hierarchical="2", network=SMALL, comm_type="Allgather",
        code="topk(ratio=0.1)", memory="residual", fusion_mb=SMALL_MB, max_steps=1,
    )  # fmt: skip
    snapshot = ended(chosen)
    residuals = [{n for n in state if n.startswith("memory/")} for state in snapshot.workers]
    assert residuals[0]
    assert residuals[1]
    assert not residuals[0] & residuals[1]
    assert residuals[:2] == residuals[2:]
    assert hosts_in(snapshot) == [0, 0, 2, 2]


@pytest.mark.slow
def test_it_goes_on_with_other_hosts_and_without(tmp_path):
    common = {"network": SMALL, "code": "topk(ratio=0.1)", "memory": "residual"}
    runs = [
        {"n": 4, "comm_type": "Allgather", "hierarchical": "2"},
        {"n": 6, "comm_type": "Allgather", "hierarchical": "3"},
        {"n": 3, "comm_type": "Allgather"},
        {"n": 4, "comm_type": "Allgather", "hierarchical": "3"},
        {"n": 3, "comm_type": "ParameterServer"},
    ]
    for number, run in enumerate(runs):
        snapshot = ended(settings(tmp_path, max_steps=1 + number, **common, **run))
        assert all(tensor.isfinite().all() for tensor in snapshot.model.values())


def test_hosts_of_a_damaged_checkpoint_are_refused():
    odd = Snapshot(1, {}, {"exchange/hosts": torch.tensor([0, 0, 2])}, ({}, {}), {})
    with pytest.raises(CheckpointError, match="hosts of its 2 workers"):
        hosts_in(odd)


def test_hosts_are_told_by_their_names():
    hosts = hosts_named([b"a", b"b", b"a", b"c", b"b", b"a"])
    assert hosts == Hosts((0, 1, 0, 3, 1, 0))
    assert (hosts.count, hosts.rails, hosts.flat) == (3, 1, False)
    assert hosts.rail(0) == [0, 1, 3]
    assert Hosts((0, 1, 0, 1)).rail(1) == [2, 3]
    assert hosts_named([b"a", b"b"]).flat


def test_one_host_has_nothing_to_compress(tmp_path):
    with pytest.raises(ConfigError, match="all 2 ranks are on here; leave it out"):
        hosts_named([b"here", b"here"])
    with pytest.raises(ConfigError, match="2 ranks are then one host"):
        run_threads(settings(tmp_path, n=2, comm_type="Allgather", hierarchical="2"))


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"hierarchical": "1"}, "how many ranks count as one host, 2 or more"),
        ({"hierarchical": "maybe"}, "give yes"),
        ({"hierarchical": "2", "comm_type": "ParameterServer"}, "give one of Allgather"),
    ],
)
def test_what_cannot_be_is_refused(said, match, tmp_path):
    with pytest.raises(ConfigError, match=match):
        settings(tmp_path, **{"n": 4, "comm_type": "Allgather"} | said)


def test_lanes_carry_about_as_much():
    sizes = [("a", Size([50])), ("b", Size([20])), ("c", Size([20])), ("d", Size([70]))]
    buckets = plan(sizes, make_codec("sgd"), grouping("layer"))
    assert [bucket.size for bucket in buckets] == [70, 20, 20, 50]
    assert rails_of(buckets, 2) == [0, 1, 1, 1]
    assert rails_of(buckets, 1) == [0, 0, 0, 0]
