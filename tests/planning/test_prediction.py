"""Predicted steps are those that can be worked out by hand, and the answer follows from them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atomo.codecs import make_codec
from atomo.options.grouping import Grouping
from atomo.planning import (
    HostModel,
    Link,
    Profile,
    Scenario,
    best_step,
    break_even,
    measure_costs,
    measure_passes,
    predict,
)
from atomo.planning.comparison import compare, compression_pays
from atomo.planning.costs import Cost, Costs, fit_line
from atomo.planning.prediction import HALF
from atomo.workloads import task_of


def cost(encode_s: int | float = 0, decode_s: int | float = 0, sent: int | float = 0) -> Cost:
    return Cost(float(encode_s), float(decode_s), float(sent))


GRADIENT = {"first": torch.ones(100), "second": torch.ones(300)}
PROFILE = Profile(0.5, (1.0, 3.0), 3.0, GRADIENT)  # the second is there after 1 s
COSTS = Costs(
    "topk", (cost(0.2, 0.03, 300), cost(0.1, 0.01, 100)), cost(0.01, 0.002, 20), 1, holds=False
)
DENSE = Costs("bf16", (cost(0, 0, 6000), cost(0, 0, 2000)), cost(), 1, holds=False)
LINK = Link(bytes_per_s=1000.0, latency_s=0.05)
LAYER, ONE = Grouping("layer"), Grouping("one")
REPORTS = 0.05  # of all ranks, once the mean is known


def test_one_message_is_encoded_sent_and_decoded_after_the_last_gradient() -> None:
    prediction = predict(Scenario(PROFILE, 4, LINK), COSTS, "Allgather", ONE)
    sent = 3 * 420 / 1000 + 0.05  # to three others
    assert prediction.step_s == pytest.approx(0.5 + 3 + 0.31 + sent + 4 * 0.042 + REPORTS)
    assert (prediction.messages, prediction.link_s) == (1, pytest.approx(sent))
    assert prediction.codec_s == pytest.approx(0.31 + 4 * 0.042)


def test_what_is_there_early_travels_beside_the_backward_pass() -> None:
    prediction = predict(Scenario(PROFILE, 4, LINK), COSTS, "Allgather", LAYER)
    first, last = 3 * 320 / 1000 + 0.05, 3 * 120 / 1000 + 0.05
    assert 1 + 0.21 + first + 4 * 0.032 < 3  # hidden
    assert prediction.step_s == pytest.approx(0.5 + 3 + 0.11 + last + 4 * 0.012 + REPORTS)


def test_encoding_delays_a_backward_pass_that_shares_its_core() -> None:
    crowded = Scenario(PROFILE, 4, LINK, HostModel(oversubscription=2.0, slowing=1.0))
    prediction = predict(crowded, COSTS, "Allgather", LAYER)
    last = 3 * 120 / 1000 + 0.05
    coded = 2 * 0.21 + 2 * 0.11 + 8 * 0.012
    assert prediction.step_s == pytest.approx(2 * (0.5 + 3) + coded + last + REPORTS)


def test_a_codec_that_must_know_the_whole_gradient_hides_nothing() -> None:
    holds = replace(COSTS, holds=True)
    scenario = Scenario(PROFILE, 4, LINK)
    whole = predict(scenario, holds, "Allgather", ONE)
    assert whole.step_s == predict(scenario, COSTS, "Allgather", ONE).step_s
    assert predict(scenario, holds, "Allgather", LAYER).step_s > 0.5 + 3 + 0.21 + 0.96


def test_the_way_down_is_whichever_takes_less() -> None:
    scenario = Scenario(PROFILE, 2, LINK)
    up = 0.5 + 3 + 0.31 + 2 * 420 / 1000 + 0.05 + 2 * 0.042
    gradients = 2 * 420 / 1000 + 2 * 0.04 + 2 * 0.05
    weights = 2 * 1600 / 1000 + 2 * 0.05  # in one piece, which the second gets from the first
    assert predict(scenario, COSTS, "ParameterServer", ONE).step_s == pytest.approx(up + gradients)
    heavy = replace(COSTS, each=(cost(0.2, 0.03, 900), cost(0.1, 0.01, 100)))
    up += 2 * 600 / 1000
    assert predict(scenario, heavy, "ParameterServer", ONE).step_s == pytest.approx(up + weights)


def test_a_worker_of_a_master_encodes_between_its_passes() -> None:
    prediction = predict(Scenario(PROFILE, 1, Link(1e12, 0.0)), COSTS, "ParameterServer", LAYER)
    repeated = 0.04
    assert prediction.step_s == pytest.approx(0.5 + 3 + 0.21 + 0.11 + 0.012 + repeated, abs=1e-6)


def test_what_a_probe_found_takes_the_place_of_the_described_link() -> None:
    fast = {"Allgather": Link(2000.0, 0.1), f"{HALF}Allreduce": Link(500.0, 0.0)}
    scenario = Scenario(PROFILE, 4, LINK, measured=fast)
    prediction = predict(scenario, COSTS, "Allgather", ONE)
    assert prediction.link_s == pytest.approx(3 * 420 / 2000 + 0.1)
    half = replace(DENSE, half=True)
    assert predict(scenario, half, "Allreduce", ONE).link_s == pytest.approx(1.5 * 8000 / 500)
    assert predict(scenario, DENSE, "Allreduce", ONE).link_s == pytest.approx(1.5 * 8 + 2 * 0.05)


def test_the_first_bytes_after_a_rest_are_there_sooner_but_not_before_they_are_sent() -> None:
    bursts = Link(1000.0, 0.05, burst_bytes=500.0)
    plain = predict(Scenario(PROFILE, 4, LINK), COSTS, "Allgather", ONE).step_s
    step_s = predict(Scenario(PROFILE, 4, bursts), COSTS, "Allgather", ONE).step_s
    assert plain - step_s == pytest.approx(0.5)
    all_of_it = predict(
        Scenario(PROFILE, 4, replace(bursts, burst_bytes=1e9)), COSTS, "Allgather", ONE
    )
    assert all_of_it.step_s == pytest.approx(0.5 + 3 + 0.31 + 4 * 0.042 + REPORTS)


def test_what_comes_down_from_a_master_has_had_a_rest_as_well() -> None:
    rested = replace(LINK, rested_bytes=100.0)
    plain = predict(Scenario(PROFILE, 4, LINK), COSTS, "ParameterServer", ONE).step_s
    step_s = predict(Scenario(PROFILE, 4, rested), COSTS, "ParameterServer", ONE).step_s
    assert plain - step_s == pytest.approx(2 * 100.0 / LINK.bytes_per_s)
    endless = replace(LINK, rested_bytes=1e9)
    assert (
        predict(Scenario(PROFILE, 4, endless), COSTS, "ParameterServer", ONE).step_s
        > PROFILE.forward_s
    )


def test_messages_go_at_the_bandwidth_of_messages_as_long_as_they_are() -> None:
    sizes = Link(500.0, 0.05, shorter=((400.0, 2000.0), (4000.0, 500.0)))
    scenario = Scenario(PROFILE, 4, LINK, measured={"Allgather": sizes})
    prediction = predict(scenario, COSTS, "Allgather", ONE)
    byte_s = 1 / 2000 + (420 - 400) / 3600 * (1 / 500 - 1 / 2000)
    assert prediction.link_s == pytest.approx(3 * 420 * byte_s + 0.05)
    heavy = replace(COSTS, each=(cost(0.2, 0.03, 9000), cost()))
    assert predict(scenario, heavy, "Allgather", ONE).link_s == pytest.approx(3 * 9020 / 500 + 0.05)


def test_cores_that_are_never_idle_do_one_thing_after_another() -> None:
    """The first message's decoding is done while the link is busy, but not for nothing."""
    fast = Link(1e12, 0.0)
    costs = Costs("topk", (cost(0, 1.0, 1), cost(0, 0, 1)), cost(), 1, holds=False)
    steps_s = [
        predict(
            Scenario(PROFILE, 2, fast, HostModel(1.0, slowing)), costs, "Allgather", LAYER
        ).step_s
        for slowing in (0.0, 0.5, 1.0)
    ]
    assert steps_s == pytest.approx([0.5 + 3, 0.5 + 3 + 1, 0.5 + 3 + 2])  # decoding takes 2 s


def test_the_optimizer_takes_its_time_at_the_master_and_again_where_gradients_come_down() -> None:
    slow = Scenario(replace(PROFILE, update_s=2.0), 2, LINK)
    plain = Scenario(PROFILE, 2, LINK)
    for name, times in (("Allgather", 1), ("ParameterServer", 2)):
        added_s = predict(slow, COSTS, name, ONE).step_s - predict(plain, COSTS, name, ONE).step_s
        assert added_s == pytest.approx(2.0 * times)


def test_a_grouping_that_was_not_given_is_no_worse_than_these() -> None:
    scenario = Scenario(PROFILE, 4, LINK)
    chosen = predict(scenario, COSTS, "Allgather").step_s
    assert chosen <= min(
        predict(scenario, COSTS, "Allgather", grouping).step_s for grouping in (LAYER, ONE)
    )
    assert best_step(scenario, COSTS, "Allgather").step_s <= chosen


def test_above_the_break_even_a_codec_gains_nothing() -> None:
    scenario = Scenario(PROFILE, 4, LINK)
    bound = break_even(scenario, COSTS, "Allgather", DENSE)
    assert 1 < bound < 1e9

    def gain(bytes_per_s: float) -> float:
        there = scenario.over(bytes_per_s)
        dense = predict(there, DENSE, "Allreduce").step_s
        return dense / predict(there, COSTS, "Allgather").step_s

    assert gain(bound / 1.1) > 1.01 > gain(bound * 1.1)
    assert break_even(scenario, DENSE, "Allreduce", DENSE) == 0
    free = replace(COSTS, each=(cost(), cost()), message=cost())
    slow = replace(DENSE, each=(cost(1, 1, 1), cost(1, 1, 1)))
    assert break_even(scenario, free, "Allgather", slow) == math.inf


def test_on_a_fast_link_the_answer_is_not_to_compress() -> None:
    measured = [(DENSE, "Allreduce"), (COSTS, "Allgather")]
    slow = Scenario(PROFILE, 4, Link(100.0, 0.001))
    assert compression_pays([*compare(slow, measured)])
    assert not compression_pays([*compare(slow.over(1e9), measured)])


def test_a_line_gives_back_the_costs_that_made_it() -> None:
    fixed, variable = fit_line([5.0, 7.0, 3.0], 11.0)
    assert fixed == pytest.approx(2)
    assert variable == pytest.approx([3, 5, 1])
    assert fit_line([4.0], 4.0) == (0, [4])


@pytest.mark.parametrize(
    ("apart", "whole"), [([1.0, 1.0, 1.0], 5.0), ([0.0, 0.0, 0.0], 0.0), ([9.0, 1.0], 2.0)]
)
def test_costs_of_noisy_times_are_not_below_zero_and_add_up(
    apart: list[float], whole: float
) -> None:
    fixed, variable = fit_line(apart, whole)
    assert min(fixed, *variable) >= 0
    assert fixed + sum(variable) == pytest.approx(whole)


def test_costs_are_those_of_real_messages() -> None:
    generator = torch.Generator().manual_seed(1)
    gradient = {
        "weight": torch.randn(200, 300, generator=generator),
        "bias": torch.randn(200, generator=generator),
        "head": torch.randn(10, 200, generator=generator),
    }
    dense = measure_costs(make_codec("sgd"), "Allgather", gradient, repetitions=1)
    entries = [2000, 200, 60_000]  # from the last to the first
    assert [cost.sent_bytes for cost in dense.each] == pytest.approx(
        [4 * n for n in entries], abs=64
    )
    assert 0 < dense.message.sent_bytes < 200
    sums = measure_costs(make_codec("bf16"), "Allreduce", gradient, repetitions=1)
    coded = 2 * 62_000 + 4 * 200  # a bias travels as it is
    assert sums.sent_bytes == pytest.approx(coded)
    factors = measure_costs(make_codec("svd(rank=2)"), "PowerSGD", gradient, repetitions=1)
    assert factors.sent_bytes < dense.sent_bytes / 10
    assert factors.rounds == 2
    agreed = measure_costs(
        make_codec("terngrad(scale=shared)"), "Allgather", gradient, repetitions=1
    )
    assert (agreed.holds, dense.holds) == (True, False)


def test_passes_are_timed_without_a_change_to_the_weights() -> None:
    torch.manual_seed(1)
    work = task_of("Digits").open("Digits", Path())
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(20), nn.ReLU(), nn.Linear(20, 10))
    batch = work.train.batch(torch.arange(8))
    model(*batch.inputs)
    before = [p.detach().clone() for p in model.parameters()]
    profile = measure_passes(model, work.objective, batch, repetitions=2)
    assert all(map(torch.equal, before, model.parameters()))
    assert list(profile.gradient) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert len(profile.ready_s) == 4
    assert 0 < max(profile.ready_s) <= profile.backward_s
    assert profile.sizes[0] == 4 * 10
