"""Layers that are encoded in a batch have the same bytes as layers encoded alone, on every path."""

import pytest
import torch
from torch import Generator, Tensor

from atomo.codecs import make_codec
from atomo.errors import CodecError


def low(m: int, n: int, rank: int) -> Tensor:
    return normal(m, rank) @ normal(rank, n)


def low_at_a_glance() -> Tensor:
    """Returns a matrix of low rank in each second row, which is the sample, and of full rank in
    all."""
    matrix = low(300, 200, 5)
    matrix[1::2] += normal(150, 200)
    return matrix


LAYERS = {
    "thin": lambda: normal(64, 32, 3, 3),
    "thin, transposed": lambda: normal(10, 300),
    "thin, of deficient rank": lambda: low(500, 60, 30),
    "zero": lambda: torch.zeros(40, 30),
    "tiny": lambda: 1e-25 * normal(40, 30),
    "huge": lambda: 1e17 * normal(40, 30),
    "wide": lambda: normal(300, 130),
    "wide, of low rank": lambda: low(300, 200, 5),
    "wide, of low rank at a glance": low_at_a_glance,
    "wide, tiny": lambda: 1e-25 * low(300, 200, 5),
    "wide, zero": lambda: torch.zeros(200, 100),
    "very wide": lambda: normal(650, 645),
    "very wide, of low rank": lambda: low(650, 645, 3),
    "very wide, tiny": lambda: 1e-25 * normal(650, 645),
    "a vector": lambda: normal(300),
}


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    "spec",
    [
        "svd(rank=3)",
        "svd(rank=2, selection=top)",
        pytest.param("svd(rank=0, matricisation=filters)", marks=pytest.mark.slow),
        pytest.param("svd(factors=fp16)", marks=pytest.mark.slow),
        pytest.param("svd(matricisation=auto)", marks=pytest.mark.slow),
    ],
)
def test_each_layer_has_the_bytes_that_it_has_alone(spec):
    codec, gradients = make_codec(spec), [make() for make in LAYERS.values()]
    draws = [[Generator().manual_seed(n) for n in range(len(LAYERS))] for _ in "ab"]
    payloads = codec.encode_all(gradients, draws[0])
    for name, gradient, payload, own in zip(LAYERS, gradients, payloads, draws[1], strict=True):
        alone = codec.sections(codec.encode(gradient, own))
        for actual, expected in zip(codec.sections(payload), alone, strict=True):
            assert actual.equal(expected), name
    assert all(
        actual.get_state().equal(expected.get_state())
        for actual, expected in zip(*draws, strict=True)
    )


@pytest.mark.parametrize("shape", [(40, 30), (300, 200), (650, 645)])
@pytest.mark.parametrize("spec", ["svd", "svd(selection=top)"])
def test_one_that_cannot_be_carried_takes_nothing_from_those_before_it(spec, shape):
    codec, bad = make_codec(spec), normal(*shape)
    bad[7, 3] = float("nan")
    payloads = codec.encode_all([normal(*shape), bad], [Generator().manual_seed(n) for n in (1, 2)])
    result = codec.sections(next(payloads))
    alone = codec.sections(codec.encode(normal(*shape), Generator().manual_seed(1)))
    assert all(actual.equal(expected) for actual, expected in zip(result, alone, strict=True))
    with pytest.raises(CodecError, match="NaN or infinity"):
        next(payloads)
