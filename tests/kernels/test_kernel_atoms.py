"""Sampling entries: Algorithm 1 without its sort, exact probabilities, in all backends."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import backends, every_backend
from support.draws import normal
from support.selection import slow_but

from atomo.codecs.spectral.atoms import probabilities
from atomo.kernels import atoms

each_backend = every_backend("atoms", interpreted=False)
magnitudes = st.lists(
    st.one_of(st.floats(-(2.0**99), 2.0**99, width=32), st.sampled_from([0.0, 1.0, -1.0, 1e-42])),
    min_size=1,
    max_size=40,
)


@pytest.mark.slow
@each_backend
@settings(max_examples=200, deadline=None, derandomize=True)
@given(entries=magnitudes, budget=st.floats(0.05, 50))
def test_the_rate_gives_the_probabilities_of_algorithm_1(backend, entries, budget):
    values = torch.tensor(entries)
    expected = probabilities(values, budget)
    rate = backend.best_rate(values, budget)
    chances = torch.where(values == 0, 0.0, values.double().abs() * rate).clamp(max=1)
    torch.testing.assert_close(chances, expected, rtol=1e-9, atol=1e-12)


@each_backend
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_rate(backend, bad):
    values = normal(1000)
    values[777] = bad
    assert math.isnan(backend.best_rate(values, 10.0))


@pytest.mark.long(
    cases=(
        "1-reference",
        "1024-reference",
        "3000-reference",
    )
)
@each_backend
@pytest.mark.parametrize("count", slow_but([1024], [1, 7, 1024, 3000]))
def test_every_entry_is_drawn_as_often_as_its_probability_says(backend, count):
    values, draws = normal(count), 4000
    values[0] = 0.0 if count > 1 else 1.0
    rate = backend.best_rate(values, 0.3 * count)
    chances = (values.double().abs() * rate).clamp(max=1)
    hits = torch.zeros(count, dtype=torch.float64)
    for seed in range(draws):
        chosen = backend.sample_entries(values, rate, seed)
        assert bool((chosen.diff() > 0).all())
        hits[chosen] += 1
    error = (chances * (1 - chances) * draws).sqrt()
    assert bool(((hits - draws * chances).abs() <= 5 * error + 1e-9).all())
    pairs = float((hits - draws * chances).square().sum() / error.square().sum())
    assert abs(pairs - 1) < 5 * (2 / count) ** 0.5 + 0.01 or count == 1


@pytest.mark.slow(cases=("reference",))
@each_backend
def test_tiny_probabilities_are_exact(backend):
    """Samples a million entries of probability 2e-8 each, which 24 random bits would triple."""
    values = torch.full((10**6,), 2e-8)
    hits = sum(len(backend.sample_entries(values, 1.0, seed)) for seed in range(100))
    assert hits <= 2 + 5 * 2**0.5


@each_backend
def test_an_infinite_rate_takes_all_that_is_not_zero(backend):
    values = torch.tensor([0.0, 1e-42, -3.0, 0.0])
    assert backend.best_rate(values, 2.0) == math.inf
    assert backend.sample_entries(values, math.inf, 0).tolist() == [1, 2]


RATES = {"few": 2.0, "most": 250.0, "all": 300.0, "not finite": math.nan}


@every_backend("atoms")
@pytest.mark.parametrize("name", slow_but(("most",), RATES))
def test_each_backend_finds_the_same_rate(backend, name):
    count, budget = 300, RATES[name]
    values = normal(count)
    values[7] = 0
    if math.isnan(budget):
        values[9], budget = budget, 10.0
    rate, expected = backend.best_rate(values, budget), atoms.best_rate(values, budget)
    assert math.isclose(rate, expected, rel_tol=1e-12) or (rate != rate and expected != expected)
    if expected == math.inf:
        assert len(backend.sample_entries(values, rate, 3)) == count - 1


def test_same_seed_same_draw_and_another_seed_another():
    values = normal(5000)
    draws = [atoms.sample_entries(values, 0.1, seed).tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("count", [1, 1023, 1030, 5000])
def test_all_backends_draw_the_same_entries(count):
    values = normal(count)
    for seed in (0, 7, 2**63 - 1):
        # In its interpreter Triton has enough of one case of two tiles.
        interpreted = (count, seed) == (1030, 2**63 - 1)
        drawn = [
            backend.sample_entries(values, 0.2, seed) for backend in backends("atoms", interpreted)
        ]
        assert all(indices.equal(drawn[0]) for indices in drawn[1:])


@each_backend
@pytest.mark.parametrize("size", [1, 8, 21])
def test_cosines_are_added_and_cut_off_at_the_end(backend, size):
    waves = normal(64).view(8, 8)
    indices = torch.tensor([0, 3, 5])[: (size + 7) // 8] * 4
    coefficients = torch.zeros((size + 7) // 8 * 8)
    values = normal(len(indices))
    coefficients[indices] = values
    expected = 1 + (coefficients.view(-1, 8) @ waves).view(-1)[:size]
    out = torch.ones(size)
    backend.add_cosines(out, indices, values, waves)
    torch.testing.assert_close(out, expected)
