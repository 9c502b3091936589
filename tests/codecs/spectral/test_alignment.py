"""Atoms have the same bits wherever a layer lies in its bucket: seeds go by the name of a layer,
and rounding may not go by its place.
"""

import pytest
import torch
from support.draws import normal, roundtrip
from torch import Tensor

from atomo.codecs import make_codec
from atomo.codecs.spectral.matricise import add_matrix

SHAPES = [(64, 64), (20, 9), (10, 84)]
FLOATS = 16  # of PyTorch's alignment


def placed(values: Tensor, offset: int) -> Tensor:
    """Copies a tensor to memory that begins some floats after an aligned address."""
    room = torch.empty(values.numel() + 2 * FLOATS)
    start = -room.data_ptr() // values.element_size() % FLOATS + offset
    return room[start : start + values.numel()].view(values.shape).copy_(values)


@pytest.mark.parametrize("atoms", [1, 3, 8, 12])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_of_atoms_is_the_same_at_any_place(shape, atoms):
    m, n = shape
    left, right, before = normal(atoms, m), normal(atoms, n), normal(m, n)
    sums = [placed(before, offset) for offset in range(FLOATS)]
    sums.append(before.T.contiguous().T)
    for out in sums:
        add_matrix(out, left, right, 1 / 3)
    assert all(out.equal(sums[0]) for out in sums)
    torch.testing.assert_close(sums[0], before + left.T @ right / 3)


@pytest.mark.parametrize(
    "code", ["svd(rank=1)", "svd(rank=3)", "svd(rank=2, selection=top)", "atomo"]
)
@pytest.mark.parametrize("shape", [*SHAPES, (5, 32)])
def test_a_layer_is_encoded_the_same_at_any_place(shape, code):
    gradient, codec = normal(*shape), make_codec(code)
    decoded = [roundtrip(codec, placed(gradient, offset)) for offset in range(FLOATS)]
    assert all(tensor.equal(decoded[0]) for tensor in decoded)
