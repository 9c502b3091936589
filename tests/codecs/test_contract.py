"""Every listed codec, against every law it declares. A new codec needs no new test here."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import draws, draws_at_once, normal, roundtrip, seeded, unbiased
from support.selection import slow_but
from torch import Size, Tensor

from atomo import codecs
from atomo.codecs import CODECS, Codec, Law, make_codec
from atomo.errors import CodecError, ConfigError

# Each listed codec by its defaults, then further configurations whose laws differ.
SPECS = [
    *CODECS,
    "svd(rank=1)",
    "svd(rank=2, matricisation=auto, selection=top)",
    "svd(factors=qsgd(bits=8))",
    "svd(rank=2, selection=top, factors=fp16)",
    "entrywise(mode=qsgd)",
    "fourier(budget=4, block=8)",
    "qsgd(bits=1, bucket_size=0)",
    "qsgd(bits=8, bucket_size=5)",
    "terngrad(clip=0)",
    "terngrad(clip=0, scale=shared)",
    "terngrad(given=0.7)",
    "topk(ratio=0.3)",
    "topk(ratio=0.3, values=fp16)",
    "threshold(value=0.3)",
    "randk(ratio=0.4, unbiased=False)",
    "chunktopk(ratio=0.5, chunk=3)",
    "tiletopk(ratio=0.3, tile=2)",
    "tiletopk(ratio=0.3, tile=3, values=lloydmax(bucket_size=4))",
    "lloydmax(bucket_size=3)",
    "dgc(ratio=0.1)",
    "dragonn(threshold=20)",
]
SHAPES = [
    (1, 1),
    (1, 7),
    (4, 3),
    (3, 4),
    (9, 9),
    (8, 3, 3, 3),
    (5, 3, 3, 3),
    (4, 6, 1, 1),
    (2, 3, 4),
    (1,),
    (7,),
    (1000,),
]

# Of each size and number of dimensions one; for statistics, which need their thousands of draws.
FEW_SHAPES = [(3, 4), (5, 3, 3, 3)]

CODECS_AND_MORE = [make_codec(spec) for spec in SPECS]
# Settings other than a codec's defaults are marked slow.
every_codec = pytest.mark.parametrize(
    "codec", slow_but(CODECS_AND_MORE[: len(CODECS)], CODECS_AND_MORE), ids=str
)


def obeying(law: Law) -> pytest.MarkDecorator:
    matching = [codec for codec in CODECS_AND_MORE if law in codec.laws]
    return pytest.mark.parametrize("codec", matching, ids=str)


def votes(codec: Codec) -> bool:
    """Returns True if a codec sends directions of size 1, which need `finish`."""
    return type(codec).finish is not Codec.finish


def tensors(codec: Codec, payload: object) -> list[Tensor]:
    return codec.sections(payload)


@every_codec
def test_declares_a_law(codec):
    # Votes have no law of their own; and clipped ternary draws are neither unbiased nor close.
    assert codec.laws or votes(codec) or codec.id == "terngrad"


@pytest.mark.parametrize("name", CODECS)
def test_its_file_says_what_law_it_has_and_what_bits_it_takes(name):
    page = inspect.getdoc(inspect.getmodule(CODECS[name])) or ""
    *_, law = page.partition("Law: ")
    law, bits, _ = law.partition("Bits: ")
    assert bits, f"{name}: no law, or no bits"
    words = [names.name.lower() for names in make_codec(name).laws]
    assert all(word in law for word in words), words


@pytest.mark.parametrize("name", CODECS)
def test_its_class_is_found_beside_the_table(name):
    assert getattr(codecs, CODECS[name].__name__) is CODECS[name]


def test_what_is_no_codec_is_not_found_beside_the_table():
    with pytest.raises(AttributeError, match=r"'atomo\.codecs' has no attribute 'Topk'"):
        codecs.Topk  # noqa: B018


@every_codec
def test_its_text_is_its_specification(codec):
    assert make_codec(str(codec)) == codec


@every_codec
def test_keeps_shape_dtype_and_input(codec):
    for shape in SHAPES:
        gradient = normal(*shape)
        before = gradient.clone()
        decoded = roundtrip(codec, gradient)
        assert (decoded.shape, decoded.dtype) == (gradient.shape, gradient.dtype)
        assert gradient.equal(before), shape


@every_codec
def test_same_seed_same_payload(codec):
    for shape in SHAPES:
        first, second = (tensors(codec, codec.encode(normal(*shape), seeded(5))) for _ in range(2))
        assert all(a.equal(b) for a, b in zip(first, second, strict=True)), shape


@every_codec
def test_a_payload_fits_its_declared_fields(codec):
    for shape in SHAPES:
        payload = tensors(codec, codec.encode(normal(*shape), seeded(0)))
        for tensor, field in zip(payload, codec.fields(Size(shape)), strict=True):
            assert tensor.dtype == field.dtype, shape
            assert all(
                n <= maximum for n, maximum in zip(tensor.shape, field.max_shape, strict=True)
            ), shape


@every_codec
def test_takes_a_gradient_that_is_not_contiguous(codec):
    for shape in SHAPES:
        gradient = normal(*shape)
        strided = torch.stack([gradient, gradient], -1)[..., 0]
        assert roundtrip(codec, strided).equal(roundtrip(codec, gradient)), shape


@every_codec
def test_zero_stays_zero(codec):
    for shape in SHAPES:
        assert not roundtrip(codec, torch.zeros(shape)).any(), shape


@every_codec
@pytest.mark.parametrize("size", slow_but([1e30], [1e-42, 1e-30, 1e30]))
def test_tiny_and_huge_stay_finite_and_about_as_large(codec, size):
    for shape in SHAPES:
        gradient = normal(*shape) * size
        drawn = draws(codec, gradient, 10)
        assert drawn.isfinite().all(), shape
        # No entry exceeds the whole gradient divided by the smallest probability that occurred.
        largest = 1.0 if votes(codec) else 1000 * float(gradient.abs().max())
        assert float(drawn.abs().max()) <= largest, shape


@obeying(Law.LOSSLESS)
def test_lossless(codec):
    for shape in SHAPES:
        assert roundtrip(codec, normal(*shape)).equal(normal(*shape)), shape


@pytest.mark.long(
    cases=(
        "entrywise(mode",
        "fourier(budget",
        "svd(factors",
        "terngrad(clip=0.0, scale",
    )
)
@pytest.mark.slow(
    cases=(
        "atomo",
        "entrywise",
        "fourier",
        "qsgd(bits",
        "randk",
        "rows",
        "terngrad(clip",
    )
)
@obeying(Law.UNBIASED)
def test_unbiased(codec, at_length):
    count = 2000 if at_length else 1000
    for shape in FEW_SHAPES:
        assert unbiased(draws_at_once(codec, normal(*shape), count), normal(*shape)), shape


@pytest.mark.long
@obeying(Law.UNBIASED)
def test_unbiased_in_every_other_shape(codec):
    drawn = {fingerprint(codec, shape) for shape in FEW_SHAPES}
    for shape in SHAPES:
        if (like := fingerprint(codec, shape)) not in drawn:
            drawn.add(like)
            # A thousand show a bias of a quarter of the deviation.
            assert unbiased(draws_at_once(codec, normal(*shape), 1000), normal(*shape)), shape
    assert len(drawn) >= 8  # as many numbers of entries


def fingerprint(codec: Codec, shape: tuple[int, ...]) -> bytes:
    """Encodes a gradient with a few seeds into a value that does not depend on its shape: equal
    values of two shapes show equal draws."""
    payloads = [codec.encode(normal(*shape), seeded(seed)) for seed in range(5)]
    decoded = [codec.decode(payload, Size(shape)) for payload in payloads]
    parts = [part for payload in payloads for part in tensors(codec, payload)]
    return b"".join(part.numpy().tobytes() for part in (*parts, *decoded))


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.9])
def test_two_thousand_draws_show_a_bias_of_a_sixth_of_their_deviation(chance):
    """Entries that are sent with a chance, and then over it: right, and off by so much."""
    gradient, generator = normal(200), seeded(0)
    sent = torch.rand(2000, 200, generator=generator) < chance
    drawn = sent * gradient / chance
    assert unbiased(drawn, gradient)
    off = gradient.clone()
    off[7] += drawn[:, 7].std() / 6
    assert not unbiased(drawn, off)


@obeying(Law.CONTRACTION)
def test_contraction(codec):
    for shape in SHAPES:
        error = (normal(*shape) - roundtrip(codec, normal(*shape))).square().sum()
        assert error < normal(*shape).square().sum(), shape


@obeying(Law.SUMMABLE)
def test_summable(codec):
    """Checks that the sum of the addends of payloads with one seed decodes to the sum of the
    gradients."""
    for shape in SHAPES:
        payloads = [codec.encode(normal(*shape) * n, seeded(3)) for n in (1, -2, 30)]
        expected, total = torch.ones(shape), torch.ones(shape)
        for payload in payloads:
            codec.add_decoded(payload, expected, 0.5)
        addends = [codec.addend(payload).clone() for payload in payloads]
        assert all(addend.dtype == torch.float32 for addend in addends)
        codec.add_summed(payloads[-1], torch.stack(addends).sum(0), total, 0.5)
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-4)


@obeying(Law.SUMMABLE)
def test_what_carries_a_sum_is_fine(codec):
    assert codec.wire_codec.near_lossless or Law.LOSSLESS in codec.wire_codec.laws


@every_codec
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=4).map(tuple),
    st.integers(0, 2**32),
    st.floats(-20, 20),
    st.floats(0, 1),
)
def test_any_shape_any_scale_any_share_of_zeros(codec, shape, seed, exponent, zeros):
    generator = seeded(seed)
    gradient = torch.randn(shape, generator=generator) * 10.0**exponent
    gradient[torch.rand(shape, generator=generator) < zeros] = 0
    payload = codec.encode(gradient, seeded(seed))
    fields, sections = codec.fields(gradient.shape), codec.sections(payload)
    for field, section in zip(fields, sections, strict=True):
        assert section.dtype == field.dtype
        assert all(a <= b for a, b in zip(section.shape, field.max_shape, strict=True))
    decoded = codec.decode(payload, gradient.shape)
    assert decoded.shape == gradient.shape
    assert decoded.isfinite().all()
    # The residual and the sent values add up to the gradients.
    residual = torch.randn(shape, generator=generator) * 10.0**exponent
    whole = residual + gradient
    sent = codec.decode(codec.encode_residual(gradient, residual, seeded(seed)), gradient.shape)
    size = float(whole.abs().max()) + float(sent.abs().max())
    torch.testing.assert_close(residual + sent, whole, rtol=0, atol=1e-5 * size)
    if Law.CONTRACTION in codec.laws:
        assert residual.norm() <= whole.norm() * (1 + 1e-5)


@every_codec
def test_rejects_an_empty_gradient(codec):
    with pytest.raises(CodecError, match=codec.id):
        codec.encode(torch.empty(0, 3), seeded(0))


@every_codec
def test_a_bad_payload_is_refused_and_leaves_the_sum_unchanged(codec):
    payload, total = codec.encode(normal(8, 6), seeded(0)), torch.ones(2, 2)
    with pytest.raises(CodecError, match=codec.id):
        codec.add_decoded(payload, total)
    assert total.equal(torch.ones(2, 2))


@every_codec
def test_adds_with_a_scale(codec):
    for shape in SHAPES:
        gradient = normal(*shape)
        payload, total = codec.encode(gradient, seeded(0)), torch.ones_like(gradient)
        codec.add_decoded(payload, total, scale=0.5)
        torch.testing.assert_close(total, 1 + 0.5 * codec.decode(payload, gradient.shape))


@every_codec
@pytest.mark.parametrize("strided", slow_but([False], [False, True]))
def test_several_at_once_are_the_sum_of_each_and_nothing_beside_it_changes(codec, strided):
    for shape in SHAPES:
        payloads = [codec.encode(normal(*shape) * n, seeded(n)) for n in (1, 3, 2, 5)]
        payloads.append(codec.encode(torch.zeros(shape), seeded(0)))
        expected = torch.ones(shape)
        for payload in payloads:
            codec.add_decoded(payload, expected, 0.5)
        size = expected.numel()
        around = torch.ones(2 * size + 2)
        if strided:
            total, beside = around[2:].view(*shape, 2)[..., 0], around[1::2]
        else:
            total, beside = around[1 : size + 1].view(shape), around[size + 1 :]
        codec.add_all(payloads, total, 0.5)
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-4)
        assert codec.batch_decodes or total.equal(expected)
        assert around[0] == 1
        assert beside.eq(1).all()


@every_codec
def test_several_gradients_at_once_give_the_bytes_of_each(codec):
    gradients = [normal(*shape) * (n + 1) for n, shape in enumerate([*SHAPES, *SHAPES[:2]])]
    gradients += [torch.zeros(7, 5), normal(9, 1) @ normal(1, 7)]
    before = [gradient.clone() for gradient in gradients]
    payloads = codec.encode_all(gradients, [*map(seeded, range(len(gradients)))])
    for number, (gradient, payload) in enumerate(zip(gradients, payloads, strict=True)):
        alone = codec.sections(codec.encode(gradient, seeded(number)))
        for actual, expected in zip(codec.sections(payload), alone, strict=True):
            assert actual.equal(expected)
    for gradient, was in zip(gradients, before, strict=True):
        assert gradient.equal(was)


@every_codec
def test_a_bad_payload_among_good_ones_is_refused(codec):
    good, bad = (codec.encode(normal(*shape), seeded(0)) for shape in ((2, 2), (8, 6)))
    with pytest.raises(CodecError, match=codec.id):
        codec.add_all([good, bad, good], torch.ones(2, 2))


@every_codec
def test_nan_and_infinity_pass_through_or_are_refused(codec):
    for value in (float("nan"), float("inf"), float("-inf")):
        gradient = normal(6, 5)
        gradient[2, 3] = value
        if Law.LOSSLESS in codec.laws:
            assert not roundtrip(codec, gradient).isfinite().all()
        else:
            with pytest.raises(CodecError, match=codec.id):
                codec.encode(gradient, seeded(0))


def test_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'fp16'.*known: sgd, fp16, bf16"):
        make_codec("fp15")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fp16(rate=1)", "unknown setting 'rate'"),
        ("fp16(1)", "cannot read"),
        ("fp16(", "cannot read"),
        ("", "cannot read"),
        ("__import__('os')", "cannot read"),
        ("(" * 500, "cannot read"),
        ("x" * 5000, "at most 1000"),
    ],
)
def test_a_bad_specification_says_what_is_wrong(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_codec(spec)
