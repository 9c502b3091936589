"""Momentum in the pass that selects: all backends, against the steps one by one."""

import pytest
import torch
from support.backends import Backend, every_backend
from support.draws import normal

from atomo.kernels import momentum
from atomo.kernels import selection as select

each_backend = every_backend("momentum")


def stepped(nesterov: bool, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes v and u by operations that round one by one."""
    values, velocity, gradient = normal(n), normal(n, seed=2), normal(n, seed=3)
    if nesterov:
        velocity = (velocity + gradient) * 0.9
        return values + (velocity + gradient), velocity
    velocity = velocity * 0.9 + gradient
    return values + velocity, velocity


@each_backend
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("n", "low"), [(1, 0.01), (2048, 3.0), (5003, 2.0), (5003, 1e-3)])
def test_grows_and_finds_as_the_steps_one_by_one(backend: Backend, nesterov, n, low):
    values, velocity, bits = normal(n), normal(n, seed=2), select.bits_of(low)
    arguments = normal(n, seed=3), 0.9, nesterov
    places = torch.arange(0, n, 3)
    sampled = backend.magnitudes(values, velocity, *arguments, places)
    result = backend.grow_above(values, velocity, *arguments, bits)
    grown, speed = stepped(nesterov, n)
    assert values.equal(grown)
    assert velocity.equal(speed)
    assert sampled.equal(grown[places].abs().view(torch.int32))
    for actual, expected in zip(result, select.above(grown, None, bits), strict=True):
        assert actual.equal(expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(bad):
    gradient = normal(3000)
    gradient[2999] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        momentum.grow_above(normal(3000), torch.zeros(3000), gradient, 0.9, False, 1 << 30)
