"""QSGD, TernGrad and natural compression: their variances, and their payloads."""

import math
from dataclasses import replace

import pytest
import torch
from support.draws import draws, normal
from torch import Generator, Tensor

from atomo.codecs import Law, make_codec
from atomo.codecs.levels.natural import Natural
from atomo.codecs.levels.qsgd import QSGD
from atomo.codecs.levels.terngrad import TernGrad
from atomo.errors import CodecError, ConfigError

DRAWS = 400


def squared_errors(codec: QSGD | TernGrad | Natural, gradient: Tensor) -> Tensor:
    """Computes ||decoded - g||^2 for each of DRAWS draws."""
    return (draws(codec, gradient, DRAWS) - gradient).double().square().flatten(1).sum(1)


def closed_form(part: Tensor, norm: float, levels: int) -> float:
    """Computes the sum of (r / s)^2 f (1 - f), with f the part above the lower level."""
    total = 0.0
    for value in part.tolist():
        exact = abs(value) * levels / norm
        fraction = exact - math.floor(exact)
        total += (norm / levels) ** 2 * fraction * (1 - fraction)
    return total


@pytest.mark.parametrize(
    "spec",
    [
        "qsgd(bits=1)",
        "qsgd",
        "qsgd(bits=8)",
        "qsgd(bits=2, bucket_size=100)",
        "qsgd(bits=3, bucket_size=0)",
        "qsgd(bits=2, norm=max)",
    ],
)
def test_the_variance_of_qsgd_is_its_closed_form_and_below_its_bound(spec):
    codec, gradient = make_codec(spec), normal(1200)
    exact = bound = 0.0
    for part in gradient.split(codec.bucket(1200)):
        n, squares = len(part), float(part.double().square().sum())
        norm = math.sqrt(squares) if codec.norm == "l2" else float(part.abs().max())
        exact += closed_form(part, norm, codec.highest_level)
        bound += min(n / codec.highest_level**2, math.sqrt(n) / codec.highest_level) * squares
    assert float(squared_errors(codec, gradient).mean()) == pytest.approx(exact, rel=0.05)
    if codec.norm == "l2":
        assert exact <= bound


def test_the_variance_of_terngrad_is_its_closed_form():
    gradient = normal(30, 40)
    exact = closed_form(gradient.flatten(), float(gradient.abs().max()), 1)
    measured = squared_errors(TernGrad(clip=0.0), gradient)
    assert float(measured.mean()) == pytest.approx(exact, rel=0.05)


def test_terngrad_clips_at_a_multiple_of_the_root_mean_square():
    gradient = normal(50, 40)
    gradient[0, 0] = 100.0
    size = float(gradient.square().mean().sqrt())
    decoded = TernGrad().decode(TernGrad().encode(gradient, Generator()), gradient.shape)
    sizes = decoded[decoded != 0].abs()
    torch.testing.assert_close(sizes, torch.full_like(sizes, 2.5 * size))
    assert float(decoded[0, 0]) == pytest.approx(2.5 * size)
    assert Law.UNBIASED not in TernGrad().laws
    assert Law.UNBIASED in TernGrad(clip=0.0).laws


def test_terngrad_takes_the_scale_that_was_agreed_on():
    gradient = normal(50, 40)
    shared = TernGrad(clip=0.0, scale="shared")
    own = float(gradient.abs().max())
    assert shared.requested_scale(gradient) == own
    for scale in (2 * own, own / 2):
        codec = shared.with_scale(scale)
        decoded = codec.decode(codec.encode(gradient, Generator()), gradient.shape)
        assert decoded.abs().unique().tolist() == pytest.approx([0.0, scale])
    exact = closed_form(gradient.flatten(), 2 * own, 1)
    measured = squared_errors(shared.with_scale(2 * own), gradient)
    assert float(measured.mean()) == pytest.approx(exact, rel=0.05)


def test_the_variance_of_natural_compression_is_its_closed_form_and_below_an_eighth():
    gradient = normal(1000)
    exact = 0.0
    for value in gradient.tolist():
        low = 2.0 ** math.floor(math.log2(abs(value)))
        exact += (abs(value) - low) * (2 * low - abs(value))
    assert float(squared_errors(Natural(), gradient).mean()) == pytest.approx(exact, rel=0.05)
    assert exact <= float(gradient.double().square().sum()) / 8


def test_natural_compression_keeps_powers_of_two_and_refuses_what_would_overflow():
    powers = torch.tensor([0.0, 1.0, -0.5, 2.0**-100, 2.0**60])
    assert Natural().decode(Natural().encode(powers, Generator()), powers.shape).equal(powers)
    tiny = torch.tensor([2.0**-149, -(2.0**-130), 0.0])
    assert Natural().decode(Natural().encode(tiny, Generator()), tiny.shape).equal(tiny)
    with pytest.raises(CodecError, match="natural"):
        Natural().encode(torch.tensor([2e38]), Generator())


@pytest.mark.parametrize(
    ("spec", "entropy"),
    [
        ("qsgd(levels=1)", 0.257),
        ("qsgd(levels=4)", 0.73),
        ("qsgd(levels=16)", 1.75),
        ("qsgd(levels=127)", 4.54),
    ],
)
def test_the_quantiser_entropies_of_gaussian_buckets(spec, entropy):
    codec, gradient = make_codec(spec), normal(512 * 1000)
    payload = codec.encode(gradient, Generator().manual_seed(0))
    units = payload.norms.repeat_interleave(512) / codec.highest_level
    levels = (codec.decode(payload, gradient.shape) / units).round()
    _, counts = levels.unique(return_counts=True)
    p = counts.double() / len(levels)
    result = float(-(p * p.log2()).sum())
    assert result == pytest.approx(entropy, rel=0.03)
    sent = 32 * len(payload.words) + 16 * len(payload.escapes)
    assert sent <= 1.05 * result * len(levels)


def test_packed_and_coded_are_the_same_numbers():
    gradient = normal(70, 100)
    for codec in (QSGD(), QSGD(bits=1), TernGrad(), Natural()):
        packed = replace(codec, coding="packed")
        actual, expected = (c.encode(gradient, Generator().manual_seed(3)) for c in (codec, packed))
        assert len(actual.words) < len(expected.words)
        assert codec.decode(actual, gradient.shape).equal(packed.decode(expected, gradient.shape))


def test_a_bucket_of_zeros_beside_others_stays_zero():
    gradient = torch.cat([normal(512), torch.zeros(512), normal(3)])
    decoded = QSGD().decode(QSGD().encode(gradient, Generator()), gradient.shape)
    assert not decoded[512:1024].any()
    assert decoded[:512].any()


def test_a_spike_has_the_highest_level_and_no_higher():
    gradient = torch.zeros(512)
    gradient[7] = -3.0
    for seed in range(20):
        payload = QSGD(bits=8).encode(gradient, Generator().manual_seed(seed))
        assert QSGD(bits=8).decode(payload, gradient.shape).equal(gradient)


@pytest.mark.parametrize("codec", [QSGD(), QSGD(bits=1), TernGrad(), Natural()], ids=str)
def test_strange_payloads_are_refused_and_leave_the_sum_unchanged(codec):
    gradient, out = normal(40, 30), torch.zeros(40, 30)
    payload = codec.encode(gradient, Generator().manual_seed(0))
    broken = [replace(payload, words=payload.words[:-1]), replace(payload, words=payload.words[:3])]
    if isinstance(codec, Natural):
        broken += [replace(payload, signs=payload.signs[1:])]
        broken += [replace(payload, shift=payload.shift + 1)]
    else:
        broken += [replace(payload, norms=payload.norms[1:])]
        broken += [replace(payload, form=payload.form + 3)]
        broken += [replace(payload, escapes=torch.zeros(5, dtype=torch.int16))]
    for strange in broken:
        with pytest.raises(CodecError, match=codec.id):
            codec.add_decoded(strange, out)
        assert not out.any()


@pytest.mark.parametrize(
    "spec",
    [
        "qsgd(bits=0)",
        "qsgd(bits=9)",
        "qsgd(levels=256)",
        "qsgd(bits=3, levels=3)",
        "qsgd(bucket_size=-1)",
        "qsgd(norm=l3)",
        "qsgd(coding=zip)",
        "terngrad(clip=-1)",
        "terngrad(coding=zip)",
        "terngrad(scale=mine)",
        "terngrad(given=-1)",
        "natural(coding=zip)",
    ],
)
def test_settings_out_of_range_are_refused(spec):
    with pytest.raises(ConfigError, match=spec.partition("(")[0]):
        make_codec(spec)
