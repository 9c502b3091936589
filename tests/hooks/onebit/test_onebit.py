"""1-bit Adam, 0/1 Adam and 1-bit LAMB over threads."""

import json
import re
from typing import Any

import pytest
import torch
from hooks.onebit import reference
from hooks.onebit.onebit_ranks import SHAPES, gradients, run, weights
from torch.nn import Parameter

import atomo
from atomo.errors import CheckpointError, ConfigError, Diverged
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.onebit.optimizer import OneBitOptimizer
from atomo.transports import network

COMMON: dict[str, Any] = {
    "lr": reference.RATE, "betas": reference.BETAS, "eps": reference.EPS,
    "weight_decay": reference.DECAY,
}  # fmt: skip
ZERO_ONE = {
    "var_freeze_step": 12, "var_update_scaler": 3, "local_step_scaler": 4, "local_step_clipper": 4
}  # fmt: skip


def adam(params: Any, collective: Any) -> OneBitOptimizer:
    return atomo.onebit_adam(params, freeze_step=8, collective=collective, **COMMON)


def zero_one(params: Any, collective: Any) -> OneBitOptimizer:
    return atomo.zero_one_adam(params, collective=collective, **ZERO_ONE, **COMMON)


def lamb(params: Any, collective: Any) -> OneBitOptimizer:
    return atomo.onebit_lamb(params, freeze_step=8, collective=collective, **COMMON)


MAKERS = pytest.mark.parametrize("make", [adam, zero_one, lamb])


def of_parameter(number: int, ranks: int, steps: int) -> list[list[torch.Tensor]]:
    return [
        [gradients(rank, step)[number].flatten() for rank in range(ranks)] for step in range(steps)
    ]


@pytest.mark.parametrize("ranks", [1, 3])
def test_1_bit_adam_follows_its_paper(ranks):
    trained = run(ranks, adam, range(30))
    for number, start in enumerate(weights()):
        expected = reference.onebit_adam(
            start.detach().flatten(), of_parameter(number, ranks, 30), 8
        )
        for own, _, _ in trained:
            torch.testing.assert_close(
                own[number].flatten(), expected.float(), rtol=1e-4, atol=1e-5
            )


@pytest.mark.slow
def test_0_1_adam_follows_its_paper():
    trained = run(3, zero_one, range(24))  # a round ends at step 24
    for number, start in enumerate(weights()):
        grads = of_parameter(number, 3, 24)
        expected = reference.zero_one_adam(start.detach().flatten(), grads, *ZERO_ONE.values())
        for own, _, _ in trained:
            torch.testing.assert_close(
                own[number].flatten(), expected.float(), rtol=1e-4, atol=1e-5
            )


@pytest.mark.slow
def test_1_bit_lamb_follows_its_paper():
    grads = [[[g.flatten() for g in gradients(r, s)] for r in range(3)] for s in range(30)]
    expected = reference.onebit_lamb([w.detach().flatten() for w in weights()], grads, 8)
    for own, _, _ in run(3, lamb, range(30)):
        for value, meant in zip(own, expected, strict=True):
            torch.testing.assert_close(value.flatten(), meant.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@MAKERS
def test_ranks_have_the_same_bits_after_a_round(make):
    first, *others = run(3, make, range(24))
    for own, _, _ in others:
        assert all(a.equal(b) for a, b in zip(first[0], own, strict=True))


@MAKERS
# after 18 steps a round of 0/1 Adam ends
@pytest.mark.slow
@pytest.mark.parametrize("cut", [pytest.param(5, marks=pytest.mark.long), 18])
def test_a_resumed_run_equals_one_never_stopped(make, cut):
    whole = run(3, make, range(24))
    before = run(3, make, range(cut), each=lambda rank, optimizer: optimizer.state_dict())
    states = [state for _, _, state in before]
    after = run(3, make, range(cut, 24), states, before[0][0])
    for (a, _, _), (b, _, _) in zip(whole, after, strict=True):
        assert all(x.equal(y) for x, y in zip(a, b, strict=True))


def owed(state: dict[str, Any]) -> torch.Tensor:
    """Returns the error of the mean over ranks, by the errors of all ranks."""
    errors = state["onebit"]["errors"]
    ranks = len(errors)
    kept = [
        sum(own[f"worker/{n}"] for own in errors.values()) / ranks
        + torch.cat([errors[str(rank)][f"server/{n}"] for rank in range(ranks)])
        for n in range(len(SHAPES))
    ]
    return torch.cat(kept)


@pytest.mark.slow
def test_another_number_of_ranks_continues_with_what_was_kept():
    made = run(3, adam, range(15), each=lambda rank, optimizer: optimizer.gather())
    start, state = made[0][0], made[0][2]
    assert [other for _, _, other in made[1:]] == [None, None]
    assert float(owed(state).norm()) > 0
    for ranks in (1, 2, 5):
        again = run(ranks, adam, range(0), [state] * ranks, start, lambda _, o: o.gather())
        torch.testing.assert_close(owed(again[0][2]), owed(state))
        run(ranks, adam, range(15, 17), [state] * ranks, start)
    same = run(3, adam, range(15, 20), [state] * 3, start)
    assert all(a.equal(b) for a, b in zip(same[0][0], run(3, adam, range(20))[0][0], strict=True))
    own = made[0][1].state_dict()
    with pytest.raises(CheckpointError, match=re.escape("lacks those of ranks [1, 2]")):
        run(1, adam, range(0), [own], start)
    with pytest.raises(CheckpointError, match="other vectors"):
        run(3, lamb, range(0), [state] * 3, start)


def test_what_is_sent_and_what_is_kept_add_up():
    def each(rank, optimizer):
        return optimizer.mean.worker_errors, optimizer.mean.server_errors

    (_, optimizer, _), *_ = run(1, adam, range(8))
    mean = optimizer.mean
    vectors = [
        torch.randn(n.numel(), generator=torch.Generator().manual_seed(9)) for n in weights()
    ]
    given = [v.clone() for v in vectors]
    for _ in range(2):
        before = [w + s for w, s in zip(mean.worker_errors, mean.server_errors, strict=True)]
        sent = [v.clone() for v in given]
        mean.average(sent)
        for g, b, w, s, out in zip(
            given, before, mean.worker_errors, mean.server_errors, sent, strict=True
        ):
            torch.testing.assert_close(out + w + s, g + b)


def test_signs_are_a_thirtieth_of_the_bytes():
    [layer] = [Parameter(torch.ones(100, 100))]
    [optimizer] = [
        atomo.onebit_adam([layer], freeze_step=1, collective=Direct(network(1)[0], 60.0))
    ]
    for _ in range(3):
        layer.grad = torch.ones(100, 100)
        optimizer.step()
    assert optimizer.mean.sent_bytes < 2 * 1.3 * 10_000 / 8


def test_entries_without_a_gradient_do_not_move():
    layer = Parameter(torch.ones(64))
    optimizer = atomo.onebit_adam([layer], freeze_step=2, collective=Direct(network(1)[0], 60.0))
    for step in range(6):
        layer.grad = torch.randn(64, generator=torch.Generator().manual_seed(step))
        layer.grad[::2] = 0
        optimizer.step()
    assert layer.detach()[::2].eq(1).all()
    assert layer.detach()[1::2].ne(1).all()


@MAKERS
def test_a_gradient_that_is_not_finite_is_an_error_of_all_ranks(make, monkeypatch):
    def spoilt(rank, step):
        values = [torch.randn(shape) for shape in SHAPES]
        if rank == 1 and step == 14:
            values[0][0, 0] = float("nan")
        return values

    monkeypatch.setattr("hooks.onebit.onebit_ranks.gradients", spoilt)
    with pytest.raises(Diverged, match="no longer finite"):
        run(2, make, range(18))


def test_configurations_of_deepspeed_are_read(tmp_path):
    lonely = Direct(network(1)[0], 60.0)
    params = {"lr": 4e-4, "freeze_step": 77, "betas": [0.8, 0.9], "comm_backend_name": "nccl"}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"optimizer": {"type": "OneBitAdam", "params": params}}))
    optimizer = atomo.deepspeed_optimizer(weights(), path, lonely)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"]) == (4e-4, (0.8, 0.9))
    assert optimizer._rule.freeze_step == 77
    for kind in ("ZeroOneAdam", "OneBitLamb"):
        atomo.deepspeed_optimizer(weights(), {"optimizer": {"type": kind}}, lonely)
    for section, words in (
        ({}, "has no"),
        ({"type": "Lion"}, "'Lion': OneBitAdam, ZeroOneAdam"),
        ({"type": "OneBitAdam", "params": {"freze_step": 1}}, "unknown setting 'freze_step'"),
        ({"type": "OneBitAdam", "params": {"amsgrad": True}}, "amsgrad must be False"),
    ):
        with pytest.raises(ConfigError, match=words):
            atomo.deepspeed_optimizer(weights(), {"optimizer": section}, lonely)
    with pytest.raises(ConfigError, match=r"missing\.json"):
        atomo.deepspeed_optimizer(weights(), tmp_path / "missing.json", lonely)


def test_settings_out_of_range_are_refused():
    lonely = Direct(network(1)[0], 60.0)
    for settings, words in (
        ({"freeze_step": 0}, "freeze_step must be a whole number from 1, got 0"),
        ({"freeze_step": 1, "lr": -1.0}, "lr must be from 0"),
        ({"freeze_step": 1, "betas": (0.9, 1.0)}, "betas must be from 0 and below 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            atomo.onebit_adam(weights(), collective=lonely, **settings)
    with pytest.raises(ConfigError, match="0 < min_coeff <= max_coeff"):
        atomo.onebit_lamb(weights(), freeze_step=1, min_coeff=20.0, collective=lonely)
    with pytest.raises(ConfigError, match="coeff_beta must be in"):
        atomo.onebit_lamb(weights(), freeze_step=1, coeff_beta=1.0, collective=lonely)
    half = [Parameter(torch.ones(3, dtype=torch.float16))]
    with pytest.raises(ConfigError, match=r"must be float32"):
        atomo.onebit_adam(half, freeze_step=1, collective=lonely)
    own = weights()
    optimizer = atomo.onebit_adam(own, freeze_step=1, collective=lonely)
    with pytest.raises(ConfigError, match="averages"):
        atomo.onebit_adam(own, freeze_step=1, collective=lonely)
    with pytest.raises(ConfigError, match="all parameter groups"):
        optimizer.add_param_group({"params": weights()})
