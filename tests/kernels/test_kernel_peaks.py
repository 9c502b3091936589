"""Joining tensors, and the largest magnitude of each, in all backends."""

import math
from importlib import import_module

import pytest
import torch
from support.backends import Backend, every_backend
from support.draws import normal
from torch import Tensor

from atomo.kernels.peaks import INFINITY, join

each_backend = every_backend("peaks")


def bits(value: float) -> int:
    return int(torch.tensor([value]).view(torch.int32))


def joined(backend: Backend, sources: list[Tensor], out: Tensor, scale: float) -> list[int]:
    """Joins tensors on the device of the backend."""
    return backend.join([source.to(backend.device) for source in sources], out, scale)


@each_backend
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_joins_in_order_over_the_scale_and_tells_the_largest(backend: Backend, scale):
    sources = [normal(sizes, seed=sizes).neg() for sizes in (1, 5, 4097)]
    out = torch.empty(4103)
    peaks = joined(backend, sources, out, scale)
    assert out.equal(torch.cat(sources) / scale)
    assert peaks == [bits(float((source / scale).abs().max())) for source in sources]


@each_backend
def test_any_strides_and_any_floating_dtype(backend: Backend):
    sources = [normal(6).view(2, 3).T, normal(8).bfloat16(), normal(4).double(), torch.ones(())]
    out = torch.empty(19)
    peaks = joined(backend, sources, out, 1.0)
    assert out.equal(torch.cat([source.float().flatten() for source in sources]))
    assert peaks[1] == bits(float(sources[1].abs().max()))


@each_backend
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_tells_what_is_zero_throughout_and_what_is_not_finite(backend: Backend, value):
    bad = normal(100)
    bad[77] = value
    zero, small, wrong = joined(
        backend, [torch.zeros(3).neg(), normal(3), bad], torch.empty(106), 1.0
    )
    assert zero == 0
    assert 0 < small < INFINITY <= wrong


def test_what_the_scale_makes_zero_or_infinite_counts_as_that():
    out = torch.empty(2)
    assert join([torch.tensor([1e-40]), torch.tensor([1e30])], out, 1e30)[0] == 0
    assert join([torch.tensor([1e-40]), torch.tensor([1e30])], out, 1e-30)[1] == INFINITY


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tells_the_largest_where_nothing_is_joined(backend: Backend, dtype):
    sources = [normal(40).neg().to(dtype), torch.zeros(3, dtype=dtype).neg(), normal(9).to(dtype)]
    sources = [source.to(backend.device) for source in sources]
    expected = joined(backend, sources, torch.empty(52), 1.0)
    module = import_module(f"atomo.kernels.peaks.{backend.name}")
    assert module.largest(sources) == expected
    for value in (math.nan, math.inf, -math.inf):
        sources[2][5] = value
        zero = module.largest(sources)
        assert zero[:2] == expected[:2]
        assert zero[2] >= INFINITY


@each_backend
def test_the_largest_of_each_is_that_of_a_join(backend: Backend):
    sources = [normal(4097), torch.zeros(3).neg(), normal(6).view(2, 3).T, torch.tensor([math.nan])]
    given = [source.to(backend.device) for source in sources]
    assert backend.largest(given)[:3] == joined(backend, sources, torch.empty(4107), 1.0)[:3]
    assert backend.largest(given)[3] >= INFINITY


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_parts_of_a_vector_it_tells_the_largest_in_their_order(backend: Backend, dtype):
    vector = normal(5000).to(dtype)
    vector[10:20], vector[4000] = 0, math.nan
    # Not in the order in which they lie, and not all of the vector.
    starts, stops = (300, 0, 10, 3999), (4000, 7, 20, 5000)
    peaks = backend.largest_in(vector.to(backend.device), starts, stops)
    parts = [vector[start:stop].float().abs() for start, stop in zip(starts, stops, strict=True)]
    assert peaks[:3] == [bits(float(part.max())) for part in parts[:3]]
    assert peaks[2] == 0
    assert peaks[3] > INFINITY
