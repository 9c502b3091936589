"""Additive payloads are summed on their way; the mean equals that of gathered frames."""

import math

import pytest
import torch
from support.harness import PATIENCE_S, together
from torch import Tensor

from atomo.errors import Diverged
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.reductions.allgather import AnnouncedAllgather
from atomo.hooks.adapter.averager import Averager
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.code_spec import parse_code
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.transports import network

RANKS = 3
ENTRIES = {"weight": (64, 200), "bias": (50,)}
HUGE = torch.finfo(torch.bfloat16).max / 2


def gradients(rank: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return {
        name: scale * torch.randn(shape, generator=generator) for name, shape in ENTRIES.items()
    }


def averaged(code: str, given: list[dict[str, Tensor]], sums: bool = True) -> list[Averager]:
    """Averages gradients, in place, over threads, a rank each."""
    parse_code(code)  # imports it: Python 3.11 may fail to in many threads
    transports = network(len(given))
    made = [None] * len(given)

    def run(rank: int) -> None:
        parameters = {name: torch.zeros_like(one) for name, one in given[rank].items()}
        exchange = make_exchange(HookConfig(code), Direct(transports[rank], PATIENCE_S), parameters)
        made[rank] = exchange._averager
        if not sums:
            averager = made[rank]
            gathers = AnnouncedAllgather(averager.collective, averager._compressor)
            averager._encodings = [(0, (averager.codecs, gathers))]
        exchange.submit(Chunk(0, given[rank]), 1.0, True, lambda: None)
        exchange.finish()

    ranks = [lambda rank=rank: run(rank) for rank in range(len(given))]
    together(ranks, lambda: transports[0].abort(1))
    return made


@pytest.fixture
def gathered(monkeypatch) -> list[int]:
    """Records the bytes that ranks pass to `gather`."""
    sizes: list[int] = []
    gather = Direct.gather

    def note(self, data, what):
        if " of step " in what:
            sizes.append(data.size)
        return gather(self, data, what)

    monkeypatch.setattr(Direct, "gather", note)
    return sizes


def check_alike(given: list[dict[str, Tensor]]) -> None:
    for one in given:
        assert all(one[name].equal(given[0][name]) for name in ENTRIES)


@pytest.mark.parametrize("code", ["fp16", "bf16", "randk(ratio=0.3)", "countsketch(ratio=0.5)"])
def test_the_sum_is_the_mean_of_what_was_gathered(code, gathered):
    summed, joined = ([gradients(rank) for rank in range(RANKS)] for _ in range(2))
    averaged(code, summed)
    assert sum(gathered) < 20  # the flags of used parameters; a gradient has 51 kB
    check_alike(summed)
    averaged(code, joined, sums=False)
    assert sum(gathered) > 20_000
    for name in ENTRIES:
        # What the carrier drops of the sum of three.
        torch.testing.assert_close(summed[0][name], joined[0][name], rtol=2e-2, atol=4e-3)


@pytest.mark.parametrize("code", ["fp16", "bf16"])
@pytest.mark.parametrize("scale", [1e-12, 1e5, HUGE])
def test_no_sum_overflows(code, scale):
    """The sum of three entries near the largest value overflows; their mean does not."""
    given = [{"weight": torch.full((100, 100), scale), "bias": torch.ones(3)} for _ in range(RANKS)]
    averaged(code, given)
    for one in given:
        torch.testing.assert_close(one["weight"], torch.full((100, 100), scale), rtol=1e-2, atol=0)


def test_what_is_sent_and_kept_is_what_came():
    given = [gradients(rank) for rank in range(RANKS)]
    mean = {name: sum(one[name] for one in given) / RANKS for name in ENTRIES}
    made = averaged("fp16", given)
    for name, expected in mean.items():
        kept = sum(one.memory.state_dict().get(name, torch.zeros(())) for one in made) / RANKS
        rounding = 2**-11 * float(expected.abs().max())  # of the sum; no rank keeps this error
        torch.testing.assert_close(given[0][name] + kept, expected, rtol=0, atol=rounding)


@pytest.mark.parametrize("idle", [(2,), (0, 1, 2)])
def test_ranks_that_used_other_parameters(idle, gathered):
    """Frames are gathered where payloads do not add up; where all left out the same they do."""
    given = [gradients(rank) for rank in range(RANKS)]
    for rank in idle:
        given[rank]["bias"].zero_()
    mean = {name: sum(one[name] for one in given) / RANKS for name in ENTRIES}
    averaged("bf16", given)
    check_alike(given)
    assert (sum(gathered) > 20) == (len(idle) < RANKS)
    for name in ENTRIES:
        torch.testing.assert_close(given[0][name], mean[name], rtol=1e-2, atol=1e-2)


def test_all_ranks_learn_who_is_not_finite():
    given = [gradients(rank) for rank in range(RANKS)]
    given[1]["weight"][3, 4] = math.nan
    with pytest.raises(Diverged, match="rank 1: the gradient of weight is no longer finite"):
        averaged("fp16", given)
