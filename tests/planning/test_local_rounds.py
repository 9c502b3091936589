"""Predicted rounds of local steps are those that can be worked out by hand."""

import math

import pytest
import torch

from atomo.errors import ConfigError
from atomo.planning import Link, Profile, Scenario
from atomo.planning.costs import Cost, Costs
from atomo.planning.local_price import PUBLISHED, prices_near
from atomo.planning.local_rounds import LONGEST, SHARE, parse_every, predict_round

GRADIENT = {"first": torch.ones(100), "second": torch.ones(300)}
PROFILE = Profile(0.01, (0.01, 0.04), 0.04, GRADIENT)  # passes of 50 ms
COSTS = Costs(
    "topk", (Cost(0.0, 0.0, 300.0), Cost(0.0, 0.0, 100.0)), Cost(0.0, 0.0, 20.0), 1, holds=False
)
SLOW = Scenario(PROFILE, 4, Link(bytes_per_s=12_600.0, latency_s=0.0))
EXCHANGE_S = 3 * 420 / 12_600  # to three others


def test_an_exchange_of_100_ms_between_steps_of_50_ms_needs_38_steps() -> None:
    predicted = predict_round(SLOW, COSTS, "Allgather", None)
    assert predicted.exchange_s == pytest.approx(EXCHANGE_S) == pytest.approx(0.1)
    assert (predicted.needed, predicted.every) == (38, 38)
    assert predicted.computing >= SHARE > predict_round(SLOW, COSTS, "Allgather", 37).computing


def test_a_given_number_of_steps_divides_the_exchange_and_its_bytes() -> None:
    predicted = predict_round(SLOW, COSTS, "Allgather", 10)
    assert predicted.step_s == pytest.approx(0.05 + EXCHANGE_S / 10)
    assert predicted.computing == pytest.approx(0.05 / (0.05 + EXCHANGE_S / 10))
    assert (predicted.peak_bytes, predicted.sent_bytes) == (3 * 420, 126)


def test_on_a_fast_link_one_step_a_round_suffices() -> None:
    fast = Scenario(PROFILE, 4, Link(math.inf, 0.0))
    predicted = predict_round(fast, COSTS, "Allgather", None)
    assert (predicted.needed, predicted.every) == (1, 1)
    assert predicted.computing == pytest.approx(1.0)


def test_one_step_a_round_has_the_overlap_of_a_step() -> None:
    predicted = predict_round(SLOW, COSTS, "Allgather", 1)
    assert predicted.step_s < 0.05 + EXCHANGE_S


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", str(LONGEST + 1)])
def test_other_numbers_of_steps_are_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--local-steps {text}: .* 1 to {LONGEST}, or auto"):
        parse_every(text)


def test_prices_name_their_source_and_the_nearest_size() -> None:
    measured, published = prices_near(400_000_000, 5, 32)
    assert "measured with Atomo" in str(measured)
    assert published.percent == PUBLISHED[550_000_000][1]
    assert "not measured here" in str(published)
