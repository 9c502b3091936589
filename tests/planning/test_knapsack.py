"""The choice of least time within a budget is that of trying all."""

import itertools

import numpy as np
import pytest

from atomo.planning.knapsack import cheapest


def brute_force(times: np.ndarray, errors: np.ndarray, budget: float) -> float:
    rows = range(len(times))
    options = itertools.product(range(times.shape[1]), repeat=len(times))
    return min(
        sum(times[i, one[i]] for i in rows)
        for one in options
        if sum(errors[i, one[i]] for i in rows) <= budget
    )


@pytest.mark.parametrize("seed", range(12))
def test_it_takes_as_long_as_the_best_of_all_choices(seed: int) -> None:
    draw = np.random.default_rng(seed)
    items, options = [(7, 3), (5, 4), (9, 2)][seed % 3]
    times, errors = draw.random((2, items, options)).round(2)
    errors[:, 0] = 0.0  # dense
    for budget in (0.0, 0.3, 1.0, float(items)):
        chosen = cheapest(times, errors, budget, close=0.0)
        rows = np.arange(items)
        assert errors[rows, chosen].sum() <= budget + 1e-9
        best = brute_force(times, errors, budget)
        assert times[rows, chosen].sum() == pytest.approx(best)


def test_a_greedy_choice_is_not_enough() -> None:
    """The first saves most for its error, and then two that together save more no longer fit."""
    times = np.array([[10.0, 4.0], [10.0, 5.0], [10.0, 5.0]])
    errors = np.array([[0.0, 0.6], [0.0, 0.51], [0.0, 0.51]])
    assert cheapest(times, errors, 1.02) == (0, 1, 1)


def test_of_no_choice_that_keeps_the_budget_the_least_error_is_taken() -> None:
    assert cheapest(np.array([[2.0, 1.0]]), np.array([[0.5, 0.7]]), 0.1) == (0,)


@pytest.mark.slow
def test_161_tensors_are_chosen_for_with_little_left_undecided() -> None:
    draw = np.random.default_rng(1)
    sizes = draw.choice([64.0, 4096.0, 36864.0, 589824.0, 2359296.0], 161)
    times = sizes[:, None] * draw.uniform(0.9, 1.1, (161, 8)) * np.geomspace(1, 0.01, 8)
    errors = sizes[:, None] * draw.uniform(0.9, 1.1, (161, 8)) * np.geomspace(1e-3, 1, 8)
    budget = 0.1 * float(errors[:, -1].sum())
    chosen = cheapest(times, errors, budget)
    rows = np.arange(161)
    assert errors[rows, chosen].sum() <= budget
    single = [times[:, k].sum() for k in range(8) if errors[:, k].sum() <= budget]
    assert times[rows, chosen].sum() < 0.9 * min(single)
