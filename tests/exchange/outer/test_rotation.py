"""The cosine transform of tiles."""

import math

import pytest
import torch

from atomo.exchange.outer.rotation import rotate, unrotate


@pytest.mark.parametrize("shape", [(), (5,), (64,), (200,), (3, 4), (130, 70), (8, 3, 5, 5), (0,)])
def test_the_inverse_returns_the_entries_and_their_norm(shape):
    entries = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    coefficients = rotate(entries)
    assert coefficients.shape == entries.shape
    torch.testing.assert_close(unrotate(coefficients), entries)
    torch.testing.assert_close(coefficients.norm(), entries.norm())


def test_a_tile_has_the_coefficients_of_the_definition():
    tile = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def basis(size: int) -> list[list[float]]:
        scale = [math.sqrt((1 if k == 0 else 2) / size) for k in range(size)]
        return [
            [scale[k] * math.cos(math.pi * (i + 0.5) * k / size) for i in range(size)]
            for k in range(size)
        ]

    down, across = (torch.tensor(basis(size), dtype=torch.float64) for size in (3, 4))
    torch.testing.assert_close(rotate(tile), (down @ tile @ across.T).float())


def test_tiles_are_transformed_apart():
    matrix = torch.randn(70, 130, generator=torch.Generator().manual_seed(3))
    whole = rotate(matrix)
    for rows, columns in ((slice(0, 64), slice(64, 128)), (slice(64, 70), slice(128, 130))):
        torch.testing.assert_close(whole[rows, columns], rotate(matrix[rows, columns]))
