"""`chunked(...)` in a hook: all ranks send the same chunks, and their sum is the mean."""

import math

import pytest
import torch
from hooks.averages import ENTRIES, averaged, of_ranks
from torch import Tensor

from atomo.errors import ConfigError, Diverged
from atomo.hooks.adapter.exchange import Exchange

CHUNK = 16
CODE = f"chunked(ratio=0.1, chunk={CHUNK})"


def mean_of(given: list[dict[str, Tensor]], name: str) -> Tensor:
    return sum(one[name].clone() for one in given) / len(given)


def kept(exchange: Exchange) -> dict[str, Tensor]:
    state = exchange.state_dict()
    return state["memories"][str(exchange.rank)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_chunks_with_the_largest_sums_of_norms_are_sent(ranks):
    given = of_ranks(ranks)
    mean = mean_of(given, "weight").view(-1, CHUNK)
    norms = sum(one["weight"].view(-1, CHUNK).abs().sum(1) for one in given)
    chosen = norms.topk(len(norms) // 10).indices
    expected = torch.zeros_like(mean)
    expected[chosen] = mean[chosen]
    bias = mean_of(given, "bias")
    made, raised = averaged(given, code=CODE)
    assert raised == [None] * ranks
    torch.testing.assert_close(given[0]["weight"].view(-1, CHUNK), expected)
    torch.testing.assert_close(given[0]["bias"], bias)
    assert all(one["weight"].equal(given[0]["weight"]) for one in given)
    left = sum(kept(one)["weight"] for one in made).view(-1, CHUNK) / ranks
    torch.testing.assert_close(left + expected, mean)
    entries = len(norms) // 10 * CHUNK + 50  # bias is dense
    sent = 4 * (len(norms) + entries) + 2 * len(ENTRIES)  # and the flags of used parameters
    assert [one.stats.sent_bytes for one in made] == [sent] * ranks


@pytest.mark.parametrize("idle", [[1], [0, 1, 2]])
def test_what_no_rank_used_is_left_alone(idle):
    given = of_ranks(3)
    made, _ = averaged(given, code=CODE)
    before = [kept(one)["weight"].clone() for one in made]
    for rank, one in enumerate(again := of_ranks(3)):
        one["weight"].mul_(rank not in idle)
    averaged(again, exchanges=made, code=CODE)
    same = [kept(one)["weight"].equal(old) for one, old in zip(made, before, strict=True)]
    assert same == [len(idle) == 3] * 3
    assert bool(again[0]["weight"].any()) == (len(idle) < 3)


def test_all_ranks_learn_who_is_not_finite():
    given = of_ranks(3)
    given[1]["weight"][3, 4] = math.nan
    _, raised = averaged(given, code=CODE)
    words = "rank 1: the gradient of weight is no longer finite"
    assert [(type(one).__mro__[1], str(one)) for one in raised] == [(Diverged, words)] * 3


@pytest.mark.parametrize(
    ("code", "match"), [("chunked(ratio=2)", "ratio"), ("chunked(values=fp16)", "values")]
)
def test_what_chunktopk_refuses_is_refused(code, match):
    with pytest.raises(ConfigError, match=match):
        averaged(of_ranks(1), code=code)
