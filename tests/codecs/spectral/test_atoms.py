"""The sampler, against the paper's Algorithm 1 taken literally and the conditions of optimality."""

import pytest
import torch
from support.draws import seeded
from torch import Tensor

from atomo.codecs.spectral.atoms import probabilities, relative_probabilities, variance
from atomo.errors import ConfigError


def literal(coefficients: list[float], budget: float) -> list[float]:
    """Runs Algorithm 1 of the paper, line by line."""
    order = sorted(range(len(coefficients)), key=lambda i: -abs(coefficients[i]))
    result = [0.0] * len(coefficients)
    for place, i in enumerate(order):
        remainder = sum(abs(coefficients[j]) for j in reversed(order[place:]))
        if abs(coefficients[i]) * budget <= remainder:
            for k in order[place:]:
                result[k] = (
                    min(budget, 1e300) * abs(coefficients[k]) / remainder if remainder else 0.0
                )
            return result
        result[i] = 1.0
        budget -= 1
    return result


def by_bisection(coefficients: Tensor, budget: float) -> Tensor:
    """Finds the t for which min(1, t |c|), the form that optimality demands, meets the budget."""
    sizes = coefficients.abs().double()
    low, high = 0.0, 1 / float(sizes[sizes > 0].min())
    for _ in range(200):
        middle = (low + high) / 2
        spent = float((sizes * middle).clamp(max=1).sum())
        low, high = (middle, high) if spent < budget else (low, middle)
    return (sizes * high).clamp(max=1)


def spectra() -> list[tuple[Tensor, float]]:
    generator = seeded(0)
    cases = []
    for number in range(1000):
        r = 1 + int(torch.randint(40, (1,), generator=generator))
        signs = torch.randn(r, generator=generator, dtype=torch.float64).sign()
        place = torch.arange(r, dtype=torch.float64)
        sizes = [
            torch.rand(r, generator=generator, dtype=torch.float64),
            0.3**place,
            1 / (1 + place) ** 2,
            torch.ones(r, dtype=torch.float64),
            torch.randint(4, (r,), generator=generator).double(),
        ][number % 5]
        shuffle = torch.randperm(r, generator=generator)
        budget = 0.5 + (r + 1.5) * float(torch.rand((), generator=generator))
        cases.append(((signs * sizes)[shuffle], round(budget * 2) / 2 if number % 2 else budget))
    return cases


@pytest.mark.slow
def test_equals_the_paper_and_the_optimum_on_a_thousand_spectra():
    for coefficients, budget in spectra():
        actual = probabilities(coefficients, budget)
        nonzero = int(coefficients.count_nonzero())
        assert actual.dtype == torch.float64
        assert float(actual.sum()) == pytest.approx(min(budget, nonzero), abs=1e-9)
        assert ((actual > 0) == (coefficients != 0)).all()
        if budget >= nonzero:
            assert (actual[coefficients != 0] == 1).all()
            continue
        paper = torch.tensor(literal(coefficients.tolist(), budget), dtype=torch.float64)
        torch.testing.assert_close(actual, paper, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(
            actual, by_bisection(coefficients, budget), rtol=1e-9, atol=1e-12
        )


def clipped(coefficients: Tensor, budget: float) -> Tensor:
    """Runs the published code's variant: clips, and loses the excess."""
    return (budget * coefficients.abs() / coefficients.abs().sum()).clamp(max=1)


@pytest.mark.slow
def test_no_worse_than_clipping_and_far_better_where_the_spectrum_decays():
    for coefficients, budget in spectra():
        if coefficients.any():
            actual = variance(coefficients, probabilities(coefficients, budget))
            reference = variance(coefficients, clipped(coefficients, budget))
            assert actual <= reference * (1 + 1e-9) + 1e-12
    steep = 0.3 ** torch.arange(20, dtype=torch.float64)
    assert 2 * variance(steep, probabilities(steep, 3.0)) < variance(steep, clipped(steep, 3.0))


def test_no_small_change_of_the_probabilities_lowers_the_variance():
    coefficients = 0.7 ** torch.arange(12, dtype=torch.float64)
    best = probabilities(coefficients, 3.0)
    free = best < 1
    for seed in range(200):
        step = torch.randn(12, generator=seeded(seed), dtype=torch.float64) * 1e-3 * best
        step[~free] = 0
        moved = best + step - step.sum() / free.sum() * free
        moved.clamp_(max=1)
        assert variance(coefficients, best) <= variance(coefficients, moved) + 1e-12


def test_a_tail_far_below_the_head_is_shared_exactly():
    coefficients = torch.cat([torch.tensor([1.0]), torch.full((1000,), 1e-18)]).double()
    expected = torch.cat([torch.tensor([1.0]), torch.full((1000,), 1e-3)]).double()
    torch.testing.assert_close(probabilities(coefficients, 2.0), expected)


@pytest.mark.parametrize("empty", [torch.zeros(4), torch.zeros(0)], ids=["zeros", "none"])
def test_nothing_to_send(empty):
    assert not probabilities(empty, 2.0).any()
    assert not relative_probabilities(empty).any()
    assert variance(empty, probabilities(empty, 2.0)) == 0


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_a_budget_must_be_above_zero(budget):
    with pytest.raises(ConfigError, match="must be above 0, got"):
        probabilities(torch.ones(3), budget)


def test_relative_probabilities():
    assert relative_probabilities(torch.tensor([1.0, -4.0, 0.0])).tolist() == [0.25, 1.0, 0.0]


def test_variance_counts_atoms_that_are_never_sent_as_unbounded():
    assert variance(torch.tensor([3.0, 0.0]), torch.tensor([0.25, 0.0])) == 27
    assert variance(torch.tensor([3.0, 1.0]), torch.tensor([0.25, 0.0])) == float("inf")
