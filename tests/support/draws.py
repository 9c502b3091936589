"""Gradients for tests, and many draws of a codec's result."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import torch
from torch import Generator, Tensor

from atomo.codecs import Codec


def seeded(seed: int = 1) -> Generator:
    return Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=seeded(seed))


def roundtrip(codec: Codec, gradient: Tensor, seed: int = 0) -> Tensor:
    return codec.decode(codec.encode(gradient, seeded(seed)), gradient.shape)


@contextmanager
def unchecked() -> Iterator[None]:
    """Disables the checks of shapes and types, which take five times as long as a small gradient.

    For calls that have been made under them before, with as many dimensions and the same types.
    """
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def draws(codec: Codec, gradient: Tensor, count: int) -> Tensor:
    """Returns the gradient after coding with each seed below `count`."""
    first = roundtrip(codec, gradient, 0)
    with unchecked():
        return torch.stack([first, *(roundtrip(codec, gradient, seed) for seed in range(1, count))])


def draws_at_once(codec: Codec, gradient: Tensor, count: int) -> Tensor:
    """Does the work of `draws` faster: encodes all seeds as the layers of a bucket, with the same
    bytes.

    Not where a test has changed the way that a gradient takes on its own.
    """
    first = roundtrip(codec, gradient, 0)
    with unchecked():
        payloads = codec.encode_all([gradient] * count, [*map(seeded, range(count))])
        drawn = torch.stack([codec.decode(payload, gradient.shape) for payload in payloads])
    assert drawn[0].equal(first)
    return drawn


def unbiased(drawn: Tensor, gradient: Tensor) -> bool:
    """True if the mean of the draws is the gradient, within five standard errors of each entry.

    2000 draws show a bias of a sixth of the standard deviation of one draw, which is seven standard
    errors, 98 times in 100.
    """
    standard_error = drawn.std(0) / len(drawn) ** 0.5
    # For an outcome drawn fewer than twenty times, or never, the standard error says little: there,
    # and only there, twenty more of the largest draw could have occurred.
    unusual = (drawn - drawn.median(0).values).abs() > 1e-6
    rare = (unusual.sum(0) < 20) * (20 * drawn.abs().max() / len(drawn))
    return bool(((drawn.mean(0) - gradient).abs() <= 5 * standard_error + rare + 1e-5).all())
