"""Two levels of magnitudes by Lloyd's algorithm, in all backends."""

import math

import pytest
import torch
from support.backends import Backend, every_backend
from support.draws import normal
from torch import Tensor

each_backend = every_backend("lloyd")


def loss(magnitudes: Tensor, levels: Tensor) -> float:
    """Returns the squared error of the nearest level."""
    errors = (magnitudes.double()[:, None] - levels.double()).square()
    return float(errors.amin(1).sum())


def least_loss(magnitudes: Tensor) -> float:
    """Returns the least squared error of two levels: of all splits of the sorted magnitudes."""
    ordered = magnitudes.double().sort().values
    sums, sizes = ordered.cumsum(0), torch.arange(1, len(ordered) + 1)
    below = sums[:-1].square() / sizes[:-1]
    above = (sums[-1] - sums[:-1]).square() / (len(ordered) - sizes[:-1])
    return float(ordered.square().sum() - (below + above).amax())


def samples(kind: str, n: int) -> Tensor:
    """Draws the largest of many numbers of a distribution, as a sparsifier leaves them."""
    drawn = {
        "normal": normal(64 * n),
        "laplace": normal(64 * n) * normal(64 * n, seed=2).abs().sqrt(),
        "heavy": normal(64 * n) / normal(64 * n, seed=2).abs().clamp_min(0.01),
    }[kind]
    return drawn[drawn.abs().topk(n).indices]


@each_backend
@pytest.mark.parametrize("kind", ["normal", "laplace"])
@pytest.mark.parametrize("n", [2, 64, 5000])
def test_the_error_is_nearly_the_least_that_two_levels_have(backend: Backend, kind, n):
    values = samples(kind, n)
    levels = backend.two_levels(values, n)
    assert levels.shape == (1, 2)
    assert 0 < float(levels[0, 0]) <= float(levels[0, 1])
    least = least_loss(values.abs())
    assert loss(values.abs(), levels) <= 1.05 * least + 1e-9


@each_backend
def test_heavy_tails_lose_less_than_one_level_does(backend: Backend):
    values = samples("heavy", 4096).abs()
    levels = backend.two_levels(values, 4096)
    assert loss(values, levels) < 0.5 * float((values - values.mean()).square().sum())


@each_backend
def test_runs_are_fitted_apart_and_the_last_may_be_short(backend: Backend):
    values = normal(150) * torch.tensor([1.0, 100.0, 1e-3]).repeat_interleave(64)[:150]
    levels = backend.two_levels(values, 64)
    alone = [backend.two_levels(run.clone(), 64) for run in values.split(64)]
    torch.testing.assert_close(levels, torch.cat(alone), rtol=1e-6, atol=0)


@each_backend
def test_equal_and_zero_entries_have_equal_levels(backend: Backend):
    values = torch.tensor([2.0, -2.0, 2.0, 0.0, -0.0, 0.0, 1e-42])
    levels = backend.two_levels(values, 3)
    assert levels[:2].tolist() == [[2.0, 2.0], [0.0, 0.0]]
    assert levels[2].equal(values[6:].expand(2))


@each_backend
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_in_its_run(backend: Backend, value):
    values = normal(100)
    values[77] = value
    levels = backend.two_levels(values, 50)
    assert levels[0].isfinite().all()
    assert not levels[1].isfinite().any()


def test_all_backends_agree():
    values = samples("heavy", 3000)
    first, *others = [b.two_levels(values.clone(), 700) for b in backends_of()]
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("n", "run"), [(1, 1), (31, 7), (100, 100), (4096, 64), (5003, 700)])
def test_all_backends_pack_and_add_the_same_bits(n, run):
    values = normal(n)
    values[n // 2] = -0.0
    levels = backends_of()[1].two_levels(values, run)
    first, *others = [b.pack_levels(values, run, levels) for b in backends_of()]
    for other in others:
        assert all(own.equal(words) for own, words in zip(first, other, strict=True))
    sums = [normal(n, seed=3) for _ in backends_of()]
    for backend, out in zip(backends_of(), sums, strict=True):
        backend.add_levels(*first, levels * 0.3, run, out)
    assert all(out.equal(sums[0]) for out in sums)
    near = (values.abs()[:, None] - levels.repeat_interleave(run, 0)[:n]).abs().argmin(1)
    chosen = levels.repeat_interleave(run, 0)[torch.arange(n), near]
    decoded = torch.zeros(n)
    backends_of()[0].add_levels(*first, levels, run, decoded)
    assert decoded.abs().equal(chosen)
    sent = decoded.ne(0)
    assert decoded[sent].signbit().equal(values[sent].signbit())


def backends_of() -> list[Backend]:
    return [Backend("lloyd", name) for name in ("cpu", "reference")]
