"""Gradients in half precision enter kernels as they are: to the bits of their float32 copy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.backends import Backend, backends
from support.draws import normal
from torch import Tensor

from atomo.kernels import quantise
from atomo.kernels.selection import bits_of

N = 5000  # whole tiles and a last one
LOW = bits_of(1.0)
HALVES = (torch.bfloat16, torch.float16)
ALL_OF_IT = torch.arange(0, N, 7)
FORM = quantise.FORMS[1]

# By kernel: its arguments, from a gradient that is read. What it changes is float32 and made here.
Arguments = Callable[[Tensor], tuple[Any, ...]]
READERS: dict[str, Arguments] = {
    "selection.above": lambda g: (normal(N, seed=2), g, LOW),
    "selection.above alone": lambda g: (g, None, LOW),
    "selection.largest": lambda g: (normal(N, seed=2), g, 50),
    "selection.largest alone": lambda g: (g, None, 50),
    "selection.largest nearly all": lambda g: (g, None, N - 10),
    "selection.magnitudes": lambda g: (normal(N, seed=2), g, ALL_OF_IT),
    "selection.magnitudes alone": lambda g: (g, None, ALL_OF_IT),
    "selection.largest_bits": lambda g: (g,),
    "selection.chunk_sums": lambda g: (normal(N, seed=2), g, 64),
    "selection.chunk_sums alone": lambda g: (g, None, 64),
    "momentum.grow_above": lambda g: (normal(N, seed=2), normal(N, seed=3), g, 0.9, False, LOW),
    "momentum.grow_above nesterov": lambda g: (
        normal(N, seed=2), normal(N, seed=3), g, 0.9, True, LOW,
    ),
    "momentum.magnitudes": lambda g: (
        normal(N, seed=2), normal(N, seed=3), g, 0.9, True, ALL_OF_IT,
    ),
    "sign.pack_signs": lambda g: (g,),
    "sign.add_pack_sum": lambda g: (normal(N, seed=2), g),
    "sign.add_pack_sum alone": lambda g: (g,),
    "sign.add_pack_means": lambda g: (normal(N, seed=2), g, 300),
    "sign.add_pack_means alone": lambda g: (g, None, 300),
    "quantise.quantise": lambda g: (
        g, torch.empty(10), 512, quantise.EUCLIDEAN, 15, FORM, 7,
    ),
    "quantise.quantise largest": lambda g: (
        g, torch.empty(17), 300, quantise.LARGEST, 15, quantise.FORMS[2], 7,
    ),
    "quantise.quantise given": lambda g: (
        g, torch.full((1,), 4.0), N, quantise.GIVEN, 1, quantise.FORMS[0], 7,
    ),
    "quantise.moments": lambda g: (g,),
    "powers.pack_powers": lambda g: (g, 7),
    "sketch.fill_cells": lambda g: (g, 7, torch.zeros(500)),
    "cast.to_half": lambda g: (g, 2.0),
    "cast.add_to_half": lambda g: (normal(N, seed=2), g, 2.0),
    "cast.to_brain": lambda g: (g,),
    "cast.add_to_brain": lambda g: (normal(N, seed=2), g),
}  # fmt: skip
# The specialised path of these always runs: its loads widen, each in a kernel of its own.
KEPT = {
    "selection.above", "selection.magnitudes", "momentum.grow_above", "sign.add_pack_sum",
    "quantise.quantise", "powers.pack_powers", "sketch.fill_cells", "cast.add_to_half",
}  # fmt: skip


def marks(backend: Backend, name: str, dtype: torch.dtype) -> list[pytest.MarkDecorator]:
    """Returns the marks that leave out the other cases."""
    is_fast = name in KEPT and backend == backends(backend.kernel)[-1] and dtype is torch.bfloat16
    return [] if is_fast else [pytest.mark.slow]


CASES = [
    pytest.param(
        backend, name, dtype, id=f"{name}-{backend}-{dtype}", marks=marks(backend, name, dtype)
    )
    for name in READERS
    for backend in backends(name.partition(".")[0])
    for dtype in HALVES
]


def call_kernel(backend: Backend, name: str, gradient: Tensor) -> tuple[Any, list[Any]]:
    """Calls a kernel, and returns its result and its arguments afterwards."""
    arguments = READERS[name](gradient)
    return getattr(backend, name.partition(".")[2].split()[0])(*arguments), [*arguments]


@pytest.mark.parametrize(("backend", "name", "dtype"), CASES)
def test_a_half_is_read_as_its_float32_copy(backend, name, dtype):
    gradient = normal(N).to(dtype)
    copy = gradient.clone()
    result, after = call_kernel(backend, name, gradient)
    expected, wide_after = call_kernel(backend, name, gradient.float())
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    for actual, second in zip(after, wide_after, strict=True):
        if actual is not gradient:
            torch.testing.assert_close(actual, second, rtol=0, atol=0)
    assert gradient.equal(copy)
