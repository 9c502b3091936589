"""Selection by a threshold from a sample, in all backends, against the steps one by one."""

import numpy as np
import pytest
import torch
from support.backends import Backend, every_backend
from support.draws import normal
from torch import Tensor

from atomo.kernels import momentum
from atomo.kernels import selection as select
from atomo.kernels.selection import Bounds

each_selection = every_backend("selection")
each_momentum = every_backend("momentum")

# Of 100,000 entries the loop in one call has room for 65,536 + 2,048, so that the calls one by one
# take over where more are found.
MANY = 100_000
CASES = {
    "enough are found": (5003, range(3, 5003, 33), 2, Bounds(50, 0.1, 1.3, 10)),
    "too many are found": (5003, range(3, 5003, 33), 30, Bounds(50, 0.8, 1.3, 10)),
    "the threshold is lowered": (5003, range(3, 5003, 33), 1, Bounds(900, 0.8, 1.3, 10)),
    "it is lowered, and then too low": (5003, range(3, 5003, 33), 1, Bounds(700, 0.5, 1.001, 10)),
    "it may not be lowered": (5003, range(3, 5003, 33), 1, Bounds(900, 0.8, 1.3, 0)),
    "it is lowered too seldom": (5003, range(3, 5003, 33), 1, Bounds(2000, 0.9, 1.3, 3)),
    "one entry": (1, range(1), 1, Bounds(1, 0.8, 1.3, 10)),
    "more than there is room for": (MANY, range(MANY), MANY, Bounds(70, 0.8, 1.3, 10)),
    "lowered beyond the room": (MANY, range(0, MANY, 97), 1, Bounds(60_000, 0.001, 1.3, 10)),
    "lowered on, too seldom, there": (MANY, range(0, MANY, 97), 1, Bounds(99_999, 0.9, 1.3, 25)),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def one_by_one(entries: Tensor, sample: range, rank: int, bounds: Bounds) -> Tensor:
    """Returns the selected indices, by sorting and comparing alone."""
    sizes = entries.abs()
    low = sizes[list(sample)].sort(descending=True).values[rank - 1]
    for _ in range(bounds.iterations):
        if int((sizes >= low).sum()) >= bounds.lower * bounds.wanted:
            break
        low = low * float(np.float32(bounds.lower))
    found = (sizes >= low).nonzero().squeeze(1)
    if len(found) > bounds.upper * bounds.wanted:
        order = sizes[found].sort(descending=True, stable=True).indices
        found = found[order[: bounds.wanted]].sort().values
    return found


@each_selection
@each_case
def test_it_adds_and_selects_as_the_steps_one_by_one(backend: Backend, case):
    n, sample, rank, bounds = case
    values, added = normal(n), normal(n, seed=2)
    total = values + added
    expected = one_by_one(total, sample, rank, bounds)
    indices, chosen = backend.by_sample(values, added, sample, rank, bounds)
    assert values.equal(total)
    assert indices.equal(expected)
    assert chosen.equal(total[expected])
    again, _ = backend.by_sample(values, None, sample, rank, bounds)
    assert again.equal(expected)
    assert values.equal(total)


@each_selection
def test_of_equal_entries_the_first_are_selected(backend: Backend):
    values = normal(5003).round()
    how = range(3, 5003, 33), 60, Bounds(50, 0.8, 1.3, 10)
    indices, _ = backend.by_sample(values, None, *how)
    assert indices.equal(one_by_one(values, *how))
    assert len(values[indices].abs().unique()) == 2


@each_momentum
@each_case
@pytest.mark.parametrize("nesterov", [False, True])
def test_it_grows_and_selects_as_the_steps_one_by_one(backend: Backend, case, nesterov):
    n, sample, rank, bounds = case
    values, velocity, gradient = normal(n), normal(n, seed=2), normal(n, seed=3)
    if nesterov:
        speed = (velocity + gradient) * 0.9
        grown = values + (speed + gradient)
    else:
        speed = velocity * 0.9 + gradient
        grown = values + speed
    expected = one_by_one(grown, sample, rank, bounds)
    state = values, velocity, gradient, 0.9, nesterov
    indices, chosen = backend.grow_by_sample(*state, sample, rank, bounds)
    assert values.equal(grown)
    assert velocity.equal(speed)
    assert indices.equal(expected)
    assert chosen.equal(grown[expected])


@each_selection
def test_of_zeros_none_is_selected(backend: Backend):
    found = backend.by_sample(torch.zeros(300), None, range(300), 9, Bounds(9, 0.8, 1.3, 10))
    assert [len(part) for part in found] == [0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(bad):
    gradient = normal(3000)
    gradient[2999] = bad
    how = range(0, 3000, 33), 1, Bounds(9, 0.8, 1.3, 10)
    with pytest.raises(ValueError, match="NaN or infinity"):
        select.by_sample(normal(3000), gradient, *how)
    with pytest.raises(ValueError, match="NaN or infinity"):
        momentum.grow_by_sample(normal(3000), torch.zeros(3000), gradient, 0.9, False, *how)
