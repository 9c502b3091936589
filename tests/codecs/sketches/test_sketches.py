"""Sketches: linear, unbiased, with the variance of the closed form."""

import pytest
import torch
from support.draws import normal, seeded
from torch import Size

from atomo.codecs import make_codec
from atomo.errors import CodecError, ConfigError

DRAWS = 2000


@pytest.mark.slow
def test_the_variance_of_an_entry_is_the_energy_of_the_others_over_the_cells():
    gradient, codec = normal(64), make_codec("countsketch(ratio=0.25)")
    draws = torch.stack(
        [codec.decode(codec.encode(gradient, seeded(s)), gradient.shape) for s in range(DRAWS)]
    )
    squares = (draws - gradient).square().sum(1)
    closed = float(63 * gradient.square().sum()) / 16
    assert abs(float(squares.mean()) - closed) <= 5 * float(squares.std()) / DRAWS**0.5


def test_sketches_of_one_seed_add():
    codec, first, second = make_codec("countsketch"), normal(500), normal(500, seed=2)
    payloads = [codec.encode(gradient, seeded(0)) for gradient in (first, second, first + second)]
    assert payloads[0].seed.equal(payloads[1].seed)
    torch.testing.assert_close(payloads[0].values + payloads[1].values, payloads[2].values)


@pytest.mark.parametrize("ratio", [0, -0.5, 1.5])
def test_a_bad_ratio_is_refused(ratio):
    with pytest.raises(ConfigError, match="countsketch: ratio"):
        make_codec(f"countsketch(ratio={ratio})")


def test_a_negative_seed_is_refused():
    codec = make_codec("countsketch")
    payload = codec.encode(normal(50), seeded(0))
    payload.seed.sub_(2**62).sub_(2**62)
    with pytest.raises(CodecError, match="countsketch"):
        codec.decode(payload, Size((50,)))
