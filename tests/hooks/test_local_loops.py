"""Local steps in loops: errors, states, scalers, schedules and options."""

import copy
from typing import Any

import pytest
import torch
from hooks.local_ranks import adamw, anchor_of, one_step, plain_sgd, replicas, steps
from hooks.loops import batch, flat, model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam
from torch.optim.lr_scheduler import StepLR

import atomo
from atomo.errors import CheckpointError, ConfigError, Diverged
from atomo.hooks.local_steps import check_arguments
from atomo.options.outer import OuterSGD

OUTER = OuterSGD(0.7, 0.9, nesterov=True)


@pytest.mark.parametrize("code", ["topk(ratio=0.2)", "sgd", "fp16", "powersgd"])
def test_a_difference_that_is_not_finite_reaches_no_memory(code):
    errors: list[str] = []

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 2)(rank, network, optimizer)
        anchor = anchor_of(network, optimizer)
        one_step(rank, 2, 2, network, optimizer)
        if rank == 1:
            with torch.no_grad():
                network[2].weight[0, 0] = torch.nan
        with pytest.raises(Diverged) as error:
            one_step(rank, 2, 3, network, optimizer)
        errors.append(str(error.value))
        assert anchor_of(network, optimizer).equal(anchor)
        memories = optimizer.exchange.state_dict()["memories"][str(rank)]
        assert all(kept.isfinite().all() for kept in memories.values())

    replicas(2, code, body, every=2, memory="none" if code == "sgd" else "auto")
    assert len(set(errors)) == 1
    assert "finite" in errors[0]
    assert "clip gradients" in errors[0]


@pytest.mark.slow(cases=("streaming", "late"))
@pytest.mark.parametrize(
    "settings",
    [
        {"every": 6},
        {"every": 6, "fragments": 2, "overlap": 2, "mix": 0.25},
        {"every": 6, "overlap": "round"},
    ],
    ids=["diloco", "streaming", "late"],
)
def test_a_resume_in_the_middle_of_a_round_is_bit_identical(settings):
    """The states are of step 8; with overlap, the exchange of a fragment is in flight then."""
    saved: dict[int, Any] = {}

    def half(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 8)(rank, network, optimizer)
        saved[rank] = copy.deepcopy((network.state_dict(), optimizer.state_dict()))
        assert bool(saved[rank][1]["in_flight"]) == ("overlap" in settings)
        steps(2, 9, 8)(rank, network, optimizer)  # what is in flight is used once, here

    def rest(rank: int, network: nn.Module, optimizer: Any) -> None:
        weights, state = saved[rank]
        network.load_state_dict(weights)
        optimizer.load_state_dict(state)
        steps(2, 20, 8)(rank, network, optimizer)

    given = {"outer": OUTER, **settings}
    whole, first = replicas(2, "topk(ratio=0.2)", steps(2, 20), adamw, **given)
    replicas(2, "topk(ratio=0.2)", half, adamw, **given)
    again, second = replicas(2, "topk(ratio=0.2)", rest, adamw, **given)
    for rank in range(2):
        assert flat(again[rank]).equal(flat(whole[rank]))
        assert anchor_of(again[rank], second[rank]).equal(anchor_of(whole[rank], first[rank]))


@pytest.mark.slow(cases=("settings1", "settings2"))
@pytest.mark.parametrize(
    "settings",
    [{"every": 4}, {"every": 4, "fragments": 2, "overlap": 1}, {"every": 4, "overlap": "round"}],
)
def test_another_number_of_ranks_begins_at_the_anchor(settings):
    gathered: list[Any] = []
    anchors: list[Tensor] = []
    sums: list[Tensor] = []

    def save(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 7)(rank, network, optimizer)
        state = optimizer.gather()
        assert (state is None) == (rank > 0)
        if state:
            gathered.append(copy.deepcopy(state))
            one_step_without_training(optimizer)
            anchors.append(anchor_of(network, optimizer))

    def one_step_without_training(optimizer: Any) -> None:
        """Brings the step of what is in flight into the anchor."""
        if gathered[0]["in_flight"]:
            optimizer._replica._begin_at_anchor()

    replicas(2, "topk(ratio=0.2)", save, **settings)

    def load(rank: int, network: nn.Module, optimizer: Any) -> None:
        optimizer.load_state_dict(copy.deepcopy(gathered[0]))
        assert flat(network).equal(anchors[0])
        assert optimizer.steps == (8 if "fragments" in settings else 4)
        memories = optimizer.exchange.state_dict()["memories"][str(rank)]
        sums.append(torch.cat([memories[name].flatten() for name in sorted(memories)]))
        steps(3, 16, optimizer.steps)(rank, network, optimizer)

    networks, _ = replicas(3, "topk(ratio=0.2)", load, **settings)
    memories = gathered[0]["exchange"]["memories"]
    expected = sum(
        torch.cat([memories[rank][name].flatten() for name in sorted(memories[rank])])
        for rank in ("0", "1")
    )
    torch.testing.assert_close(torch.stack(sums).sum(0), expected)
    assert "overlap" in settings or flat(networks[2]).equal(flat(networks[0]))


def test_a_scaler_skips_steps_that_are_not_counted():
    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        number = 0
        while optimizer.steps < 8:
            images, labels = batch(number)
            optimizer.zero_grad()
            loss = cross_entropy(network(images[rank::2]), labels[rank::2])
            # Rank 1 skips its third batch, so that it needs one more than rank 0.
            scaler.scale(loss * (torch.inf if (number, rank) == (2, 1) else 1)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            number += 1
        assert number == 8 + rank

    networks, optimizers = replicas(2, "topk(ratio=0.2)", body, every=4)
    assert flat(networks[0]).equal(flat(networks[1]))
    assert [optimizer.exchange.stats.steps for optimizer in optimizers] == [2, 2]


def test_a_step_that_a_fused_optimizer_skips_is_not_counted():
    network = model()
    inner = plain_sgd(network)
    wrapped = atomo.local_steps(network, inner, "sgd", every=2, outer="sgd(lr=1)")
    for infinite in (0.0, 1.0, 0.0):
        inner.found_inf = torch.tensor([infinite])  # as a scaler has it during the step
        wrapped._replica.after_step()
    assert wrapped.steps == 2


def test_schedules_count_inner_steps_and_inner_state_is_never_reset():
    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        scheduler = StepLR(optimizer, 5, 0.5)
        for step in range(10):
            one_step(rank, 2, step, network, optimizer)
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.0025
        assert {float(state["step"]) for state in optimizer.state.values()} == {10.0}

    replicas(2, "topk", body, lambda network: Adam(network.parameters(), lr=0.01), every=4)


def test_a_closure_is_a_step():
    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        images, labels = batch(rank)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(network(images), labels)
            loss.backward()
            return loss

        assert all(float(optimizer.step(closure).detach()) > 0 for _ in range(4))
        assert optimizer.steps == 4

    networks, _ = replicas(2, "sgd", body, every=2)
    assert flat(networks[0]).equal(flat(networks[1]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": 0}, "every must be a whole number from 1, got 0"),
        ({"every": 7, "fragments": 2}, "every=7 must be a multiple of fragments=2"),
        ({"every": 6, "fragments": 2, "overlap": 3}, "overlap=3 must be below every/fragments = 3"),
        ({"overlap": "all"}, "overlap must be a whole number from 0, got 'all'"),
        ({"overlap": "round", "mix": 0.5}, "needs fragments=1 and mix=0.*got fragments=1, mix=0.5"),
        ({"every": 4, "fragments": 2, "overlap": "round"}, "whole round needs fragments=1"),
        ({"every": {0: 1, 5: 3, 10: 4}}, "5 steps from step 5 to step 10 are no whole number"),
        ({"every": {1: 4}}, r"steps must increase from 0, got \[1\]"),
        ({"every": "0: 1, 5: 3"}, "every: cannot read '0: 1, 5: 3'; write 'STEP: EVERY"),
        ({"every": "0: 1; 6: 3", "overlap": 1}, "overlap=1 must be below every/fragments = 1"),
        ({"every": 4, "fragments": [["0.*"]]}, "no pattern has parameter 2.weight: add"),
        ({"every": 4, "fragments": [["*"], ["0.*"]]}, r"no parameter is left for \['0.\*'\]"),
        ({"every": 4, "fragments": ["0.*"]}, "fragments must be a number, or lists of patterns"),
        ({"transform": "fft"}, "unknown transform 'fft'.*none, dct"),
        ({"recipe": "dilco"}, "unknown recipe 'dilco'; did you mean 'diloco'"),
        ({"recipe": 3}, "recipe must be a name, got 3 of type int"),
        ({"outer": "sign(lr=-1)"}, "lr must be a number from 0 and finite, got -1.0"),
        ({"mix": 1.5}, r"mix must be a number in \[0, 1\], got 1.5"),
        ({"mix": -0.1}, r"mix must be a number in \[0, 1\], got -0.1"),
        ({"fragments": 5}, "fragments=5 is above the number of parameters that train, 4"),
        ({"outer": "adam(lr=1)"}, "unknown outer optimizer 'adam'.*sgd, sign, auto"),
        ({"outer": "sgd(rate=1)"}, "unknown setting 'rate'.*lr, momentum, nesterov"),
        ({"outer": "sgd(lr=0)"}, "lr must be above 0 and finite, got 0"),
        ({"outer": "sgd(lr=1, momentum=1)"}, r"momentum must be in \[0, 1\), got 1"),
        ({"outer": "sgd(lr=1, nesterov=yes)"}, "nesterov=yes needs momentum above 0"),
        ({"outer": "sgd(lr=many)"}, "'many' is neither yes nor no"),
        ({"outer_mean": "median"}, "unknown outer_mean 'median'"),
        (
            {"outer_mean": "senders", "fragments": 1, "every": 2, "code": "powersgd"},
            "outer_mean=senders goes with codecs, not with LowRank|PowerSGD",
        ),
        ({"memory": "dgc"}, "memory dgc computes a step from gradients.*memory='residual'"),
        ({"bucket_mb": 0.0}, "bucket_mb must be a number of MB above 0"),
        ({"seed": 1.5}, "seed must be a whole number"),
    ],
)
def test_an_invalid_option_is_named_with_its_value(settings, words):
    network = model()
    settings = {"every": 30, "fragments": 1, **settings}
    if settings["fragments"] == 5:
        settings["every"] = 5
    with pytest.raises(ConfigError, match=words):
        atomo.local_steps(network, plain_sgd(network), **{"code": "topk", **settings})


def test_an_optimizer_or_a_model_that_averages_already_is_refused():
    network = model()
    wrapped = atomo.local_steps(network, plain_sgd(network), "sgd")
    for optimizer, words in ((wrapped, "wrapped already"), (plain_sgd(network), "already")):
        with pytest.raises(ConfigError, match=words):
            atomo.local_steps(network, optimizer, "sgd")
    with pytest.raises(ConfigError, match="the model comes first, not a SGD"):
        check_arguments(plain_sgd(network), network, "sgd")
    with pytest.raises(ConfigError, match="before local_steps"):
        wrapped.add_param_group({"params": []})


def test_ranks_with_other_rounds_are_told_so():
    with pytest.raises(ConfigError, match=r"rank 1 has local_steps every=3.*, rank 0 every=2"):
        replicas(2, "sgd", steps(2, 1), each=lambda rank: {"every": 2 + rank})


def test_a_state_of_other_rounds_or_another_model_is_refused():
    def wrapped(network: nn.Module, every: int) -> Any:
        return atomo.local_steps(network, plain_sgd(network), "sgd", every=every)

    first = wrapped(model(), 4)
    with pytest.raises(CheckpointError, match=r"the state has every=4, .* has every=8"):
        wrapped(model(), 8).load_state_dict(first.state_dict())
    with pytest.raises(CheckpointError, match="the weights of the anchor in the state"):
        wrapped(nn.Linear(3, 2), 4).load_state_dict(first.state_dict())
    with pytest.raises(CheckpointError, match="format None; this one reads 1"):
        first.load_state_dict(plain_sgd(model()).state_dict())


def test_the_default_outer_optimizer_is_printed_once_with_its_effective_rate(capfd):
    _, optimizers = replicas(2, "sgd", steps(2, 1), every=100, outer="auto")
    assert optimizers[0].outer == OuterSGD(0.7, 0.9, nesterov=True)
    assert capfd.readouterr().err.splitlines() == [
        "atomo: outer=auto is sgd(lr=0.7, momentum=0.9, nesterov=yes), effective rate 1.33 if "
        "consecutive mean differences are uncorrelated, 7 if they are equal"
    ]
    _, optimizers = replicas(2, "topk", steps(2, 1), every=100, outer="auto")
    assert optimizers[1].outer == OuterSGD(1.0, 0.0, nesterov=False)
    assert "effective rate 1\n" in capfd.readouterr().err
