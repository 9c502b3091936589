"""Half precision in one pass: a scale is guessed from a sample, and a wrong guess loses nothing."""

import pytest
import torch
from support.draws import normal, roundtrip, seeded
from torch import Tensor

from atomo.codecs import make_codec
from atomo.errors import CodecError

N = 100_000


def spiked(size: float, place: int = 12_345) -> Tensor:
    """Entries about 1, and one that the sample does not see."""
    gradient = normal(N)
    gradient[place] = size
    return gradient


def quiet_sample(size: float) -> Tensor:
    """Returns a gradient whose sampled entries are zero."""
    gradient = normal(N) * size
    gradient[:: N // 4096] = 0
    return gradient


CASES = [
    normal(N),
    spiked(-1e9),
    spiked(1e-9),
    spiked(60.0),
    quiet_sample(1.0),
    quiet_sample(1e-9),
    quiet_sample(1e9),
]


@pytest.mark.parametrize("gradient", CASES, ids=range(len(CASES)))
def test_halves_have_eleven_bits_whatever_the_sample_says(gradient):
    decoded = roundtrip(make_codec("fp16"), gradient)
    floor = float(gradient.abs().max()) * 2.0**-33  # half the smallest denormal below the largest
    assert ((decoded - gradient).abs() <= (gradient.abs() * 2.0**-11).clamp(min=floor)).all()


@pytest.mark.parametrize("code", ["fp16", "bf16"])
@pytest.mark.parametrize("gradient", CASES, ids=range(len(CASES)))
def test_a_residual_in_the_same_pass_is_one_in_three(code, gradient):
    codec, residual = make_codec(code), 0.01 * gradient.flip(0)
    total = residual + gradient
    payload = codec.encode_residual(gradient, residual, seeded(0))
    sent = codec.decode(payload, total.shape)
    torch.testing.assert_close(sent + residual, total, rtol=1e-6, atol=0)
    assert float(residual.norm()) < 2.0**-8 * float(total.norm())


@pytest.mark.parametrize("code", ["fp16", "bf16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_cannot_be_cast_is_found_in_a_residual_too(code, bad):
    for residual, gradient in ((torch.zeros(N), spiked(bad)), (spiked(bad), torch.zeros(N))):
        with pytest.raises(CodecError, match=f"{code}: the gradient holds NaN or infinity"):
            make_codec(code).encode_residual(gradient, residual, seeded(0))


def test_a_residual_that_would_round_to_infinity_is_refused():
    with pytest.raises(CodecError, match="would round to infinity"):
        make_codec("bf16").encode_residual(torch.zeros(3), torch.full((3,), 3.4e38), seeded(0))
