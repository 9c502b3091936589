"""Whichever way the weights come down, a run is the same, bit for bit."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from support import harness as support
from support.harness import run_threads, settings
from support.networks import SMALL, SMALL_MB
from support.selection import slow_but
from torch import Tensor

from atomo.errors import ConfigError
from atomo.exchange import Client, Command, Server
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.events import Caution, Event, StepDone
from atomo.transports import LocalTransport, network
from atomo.wire import Kind, read_header

STEPS = 4


@pytest.fixture
def sent(monkeypatch) -> Counter[Kind]:
    """Returns the frames that the master sends, by kind, over transports whose ranks are hosts
    apart.
    """
    kinds: Counter[Kind] = Counter()
    plain = LocalTransport.send

    def send(self: LocalTransport, to: int, data: object, label: str) -> None:
        if self.rank == 0:
            kinds[read_header(data).kind] += 1
        plain(self, to, data, label)

    def apart(size: int) -> list[LocalTransport]:
        transports = network(size)
        for transport in transports:
            transport.local_size = 1
        return transports

    monkeypatch.setattr(LocalTransport, "send", send)
    monkeypatch.setattr(support, "network", apart)
    return kinds


def trained(
    folder, down: str, tell: Callable[[Event], None] = lambda event: None, **changes: object
) -> dict[str, Tensor]:
    """Trains a few steps, and returns all tensors of the checkpoint."""
    short = {"network": SMALL, "batch_size": 8, "max_steps": STEPS, "fusion_mb": SMALL_MB}
    chosen = settings(folder, **(short | {"down": down} | changes))
    run_threads(chosen, tell)
    snapshot = load(folder, chosen.max_steps)
    kept = dict(snapshot.model) | {f"optimizer/{k}": t for k, t in snapshot.optimizer.items()}
    for rank, state in enumerate(snapshot.workers):
        kept |= {f"{rank}/{name}": tensor for name, tensor in state.items()}
    return kept


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not one[name].equal(other[name])] == []


BITS = [
    {"code": "svd"},
    {"code": "svd", "n": 2, "weight_decay": 1e-4, "nesterov": True},
    {"code": "topk(ratio=0.05)", "n": 4},
    {"code": "dgc(ratio=0.05)", "memory": "dgc(clip=1.0)", "weight_decay": 1e-4},
    {"code": "qsgd(bits=2)", "lr_shrinkage": 0.5, "lr_shrink_freq": 2},
    {"code": "signsgd", "n": 4},
    {"code": "terngrad(scale=shared)", "memory": "none"},
    {"code": "sgd", "optimizer": "adam", "lr": 1e-3},
    {"code": "qsgd", "code_schedule": "0.1: onebit"},
]


@pytest.mark.long(
    cases=(
        "dgc",
        "qsgd(",
        "sgd-3",
        "signsgd",
        "svd-2",
        "terngrad",
    )
)
@pytest.mark.slow(cases=("topk",))
@pytest.mark.parametrize(
    "changes",
    slow_but([BITS[i] for i in (1, 2)], BITS),
    ids=lambda changes: f"{changes['code']}-{changes.get('n', 3)}",
)
def test_updates_and_auto_give_the_bits_of_weights(tmp_path, sent, changes):
    whole = trained(tmp_path / "weights", "weights", **changes)
    workers = changes.get("n", 3) - 1
    assert sent[Kind.WEIGHTS] + sent[Kind.RELAY] == STEPS * workers
    sent.clear()
    told: list[Event] = []
    assert_same(whole, trained(tmp_path / "updates", "updates", told.append, **changes))
    assert not sent[Kind.WEIGHTS] + sent[Kind.RELAY] + sent[Kind.SNAPSHOT]
    assert sent[Kind.BEGIN] == STEPS * workers
    assert sent[Kind.CHAIN] == (workers * (STEPS - 1) if workers > 2 else 0)
    assert not [event for event in told if isinstance(event, Caution) and "other" in event.text]
    assert_same(whole, trained(tmp_path / "auto", "auto", **changes))


@pytest.mark.slow
def test_auto_sends_whatever_is_fewer_bytes(tmp_path, sent):
    trained(tmp_path, "auto", code="topk(ratio=0.01)", memory="residual")
    assert sent[Kind.UPDATE]
    assert not sent[Kind.RELAY]
    sent.clear()
    # All gradients are three times the weights, which go down a chain as well; the momentum, twice
    # a worker's part of what is too much, is what it costs to come back.
    trained(tmp_path / "sgd", "auto", code="sgd", n=4, blosc_codec="none")
    assert sent[Kind.CHAIN] == 3
    assert sent[Kind.RELAY] == 3 * (STEPS - 2)


@pytest.mark.slow
def test_auto_sends_weights_within_one_host(tmp_path, sent, monkeypatch):
    monkeypatch.setattr(support, "network", network)
    trained(tmp_path, "auto", code="topk(ratio=0.01)")
    assert sent[Kind.WEIGHTS] == 2 * STEPS
    assert not sent[Kind.UPDATE]


@pytest.mark.slow
@pytest.mark.parametrize("down", slow_but(["updates"], ["updates", "auto"]))
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path, sent, down):
    changes = {"code": "topk(ratio=0.05)", "eval_freq": 2}
    whole = trained(tmp_path / "whole", down, max_steps=5, **changes)
    trained(tmp_path / "parts", down, max_steps=2, **changes)
    sent.clear()
    assert_same(whole, trained(tmp_path / "parts", down, max_steps=5, **changes))
    assert sent[Kind.SNAPSHOT] == 2  # one a worker, upon which it follows


@pytest.mark.slow
def test_the_way_down_may_change_on_a_resume(tmp_path, sent):
    changes = {"code": "topk(ratio=0.05)"}
    trained(tmp_path / "parts", "updates", max_steps=2, **changes)
    trained(tmp_path / "parts", "weights", max_steps=3, **changes)
    parts = trained(tmp_path / "parts", "updates", **changes)
    assert_same(trained(tmp_path / "once", "weights", **changes), parts)


@pytest.mark.slow
def test_weights_leave_the_master_about_once_whatever_the_number_of_workers(tmp_path, sent):
    told: list[Event] = []
    trained(tmp_path, "weights", told.append, code="topk(ratio=0.01)", network="FC", n=5)
    steps = [event for event in told if isinstance(event, StepDone)]
    assert all(step.down_bytes < 1.01 * step.dense_bytes / 4 for step in steps)


@pytest.mark.slow
def test_the_steps_of_a_run_say_how_many_bytes_came_down(tmp_path, sent):
    told: list[Event] = []
    trained(tmp_path, "updates", told.append, code="topk(ratio=0.01)", network="FC")
    steps = [event for event in told if isinstance(event, StepDone)]
    # Each worker gets the other's gradient, once there is one.
    assert steps[1].down_bytes < 1.1 * steps[0].up_bytes
    assert steps[-1].down_bytes < 0.05 * steps[-1].dense_bytes


@pytest.mark.slow
def test_lossless_differences_give_the_bits_of_weights(tmp_path, sent):
    changes = {"code": "topk(ratio=0.05)", "n": 4}
    whole = trained(tmp_path / "weights", "weights", **changes)
    sent.clear()
    assert_same(whole, trained(tmp_path / "delta", "delta(sgd)", **changes))
    assert sent[Kind.DELTA] > STEPS  # a frame for each bucket, down a chain
    assert sent[Kind.CHAIN] == 3 * (STEPS - 1)
    assert sent[Kind.SNAPSHOT] == 3  # before the checkpoint
    assert not sent[Kind.WEIGHTS] + sent[Kind.RELAY]


DIFFERENCES = ["delta(topk(ratio=0.05))", "delta(efsignsgd)", "delta(bf16)"]


@pytest.mark.slow
@pytest.mark.parametrize("down", DIFFERENCES)
def test_replicas_stay_alike_and_the_checkpoint_is_what_workers_have(tmp_path, sent, down):
    told: list[Event] = []
    # An optimizer without momentum, and 4 steps of a small rate: x and w differ, but not by much.
    changes = {"code": "topk(ratio=0.05)", "lr": 1e-3, "eval_freq": 2}
    whole = trained(tmp_path / "whole", down, told.append, **changes)
    assert not [event for event in told if isinstance(event, Caution) and "other" in event.text]
    steps = [event for event in told if isinstance(event, StepDone)]
    assert steps[1].down_bytes < 0.3 * steps[1].dense_bytes  # bf16 is a half, for two workers
    trained(tmp_path / "parts", down, max_steps=2, **changes)
    assert_same(whole, trained(tmp_path / "parts", down, **changes))


@pytest.mark.slow(cases=("{'n': 3",))
@pytest.mark.parametrize("changes", [{"n": 2}, {"n": 3}, {"n": 3, "num_aggregate": 1}], ids=str)
def test_workers_compute_at_rounded_weights_and_the_master_keeps_its_own(
    tmp_path, sent, monkeypatch, changes
):
    masters, workers = {}, set()
    opening, pulling = Server.broadcast, Client.pull

    def broadcast(self: Server, step: int, weights: Tensor) -> None:
        masters[step] = weights.clone()
        opening(self, step, weights)

    def pull(self: Client) -> Command:
        order = pulling(self)
        if order.weights is not None:
            workers.add(order.step)
            assert order.weights.equal(masters[order.step].bfloat16().float())
        return order

    monkeypatch.setattr(Server, "broadcast", broadcast)
    monkeypatch.setattr(Client, "pull", pull)
    # Little steps, which rounded weights would forget.
    kept = trained(tmp_path, "weights(bf16)", code="sgd", lr=1e-4, **changes)
    assert workers == {*range(1, STEPS + 1)}
    weights = torch.cat([t.flatten() for name, t in kept.items() if name.startswith("fc")])
    assert not weights.equal(weights.bfloat16().float())


@pytest.mark.slow
def test_a_run_with_rounded_weights_goes_on_as_if_it_had_never_stopped(tmp_path, sent):
    told: list[Event] = []
    changes = {"code": "topk(ratio=0.05)", "eval_freq": 2}
    whole = trained(tmp_path / "whole", "weights(bf16)", told.append, **changes)
    down = [event.down_bytes for event in told if isinstance(event, StepDone)]
    dense = next(event.dense_bytes for event in told if isinstance(event, StepDone))
    assert max(down) < 0.51 * dense / 2  # of two workers, the first gets half as many bytes
    trained(tmp_path / "parts", "weights(bf16)", max_steps=2, **changes)
    assert_same(whole, trained(tmp_path / "parts", "weights(bf16)", **changes))


def test_weights_are_spelled_in_one_way(tmp_path):
    assert settings(tmp_path, down="Weights( BF16 )").down == "weights(bf16)"
    assert settings(tmp_path, down="weights(fp32)").down == "weights"


def test_a_way_down_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown way down 'updats'; did you mean 'updates'"):
        settings(tmp_path, down="updats")


@pytest.mark.parametrize(
    ("down", "message"),
    [
        ("delta", r"delta needs a codec, e.g. delta\(topk"),
        ("delta()", "delta needs a codec"),
        ("delta(nosuch)", "unknown codec 'nosuch'"),
        ("delta(svd)", r"svd is not; give .*or svd\(selection=top\)"),
        ("delta(qsgd)", "shrinks only under a contraction"),
        ("delta(signsgd)", "shrinks only under a contraction"),
        ("updates(sgd)", "updates takes no settings"),
        ("auto(bf16)", r"auto takes no settings; .* weights may travel as bf16"),
        ("weights(fp16)", r"travel as fp32, .* or rounded to half the bytes, .* weights\(bf16\)"),
        ("weights()", r"which is weights\(bf16\); codecs are for delta\(CODEC\)"),
        ("delta(sgd", "unknown way down"),
    ],
)
def test_a_codec_that_does_not_go_with_differences_is_refused(tmp_path, down, message):
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, down=down)


def test_a_difference_is_spelled_in_one_way(tmp_path):
    chosen = settings(tmp_path, down="Delta( TopK(ratio = 0.05) )")
    assert chosen.down == "delta(topk(ratio=0.05))"
    assert settings(tmp_path, down=chosen.down).down == chosen.down
