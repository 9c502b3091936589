"""The sparsifiers: the definition of each, beyond the laws that all codecs share."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import draws, normal, seeded
from torch import Size, Tensor

from atomo.codecs import Law, make_codec
from atomo.codecs.sparse.dgc import DGC, WARM_UP, warm_up
from atomo.codecs.sparse.dragonn import Dragonn
from atomo.codecs.sparse.payload import Sparse
from atomo.codecs.sparse.search import WholeSearch
from atomo.errors import CodecError, ConfigError
from atomo.kernels import selection as select

FUSED = [
    "topk(ratio=0.02)",
    "topk(ratio=0.02, values=fp16)",
    "topk(ratio=0.02, values=qsgd(bits=4))",
    "threshold(value=2)",
    "threshold(value=2, values=bf16)",
    "dgc(ratio=0.01)",
    "dgc(ratio=0.01, values=fp16)",
    "dragonn(ratio=0.01)",
    "dragonn(ratio=0.01, values=fp16)",
    "dgc(ratio=0.01, strided_sample=False, iterations=2)",
    "randk(ratio=0.01, unbiased=False)",
    "chunktopk(ratio=0.02)",
    "tiletopk(ratio=0.02)",
    "tiletopk(ratio=0.02, tile=16, values=lloydmax)",
]
CPU = torch.device("cpu")
PLACES = [range(100, 1300), range(1300, 2000)]
"""Two parts of a vector of 2,000 entries."""


def sent(code: str, gradient: Tensor, seed: int = 0) -> Tensor:
    codec = make_codec(code)
    return codec.decode(codec.encode(gradient, seeded(seed)), gradient.shape)


@pytest.mark.parametrize("code", FUSED)
@pytest.mark.parametrize("n", [1, 100, 5000])
def test_the_fused_residual_is_the_sum_less_what_was_sent(code, n):
    codec, gradient, residual = make_codec(code), normal(n), normal(n, seed=2)
    before, total = gradient.clone(), gradient + residual
    payload = codec.encode_residual(gradient, residual, seeded(4))
    plain = codec.encode(total, seeded(4))
    for actual, expected in zip(codec.sections(payload), codec.sections(plain), strict=True):
        assert actual.equal(expected)
    torch.testing.assert_close(residual + codec.decode(payload, Size([n])), total)
    assert gradient.equal(before)


@pytest.mark.parametrize("code", FUSED)
def test_a_mask_covers_exactly_what_is_sent(code):
    codec, gradient, ones = make_codec(code), normal(3000), torch.ones(3000)
    payload = codec.encode(gradient, seeded())
    codec.clear_sent(payload, ones)
    assert not (ones.bool() & (codec.decode(payload, Size([3000])) != 0)).any()
    if isinstance(payload, Sparse) and "chunk" not in code:
        assert int((ones == 0).sum()) == int(payload.count)


@pytest.mark.parametrize("code", [*FUSED, "qsgd"])
def test_parts_that_are_added_together_have_the_bits_of_one_after_another(code):
    codec, shapes, places = make_codec(code), [Size([40, 30]), Size([700])], PLACES
    payloads = [
        [codec.encode(normal(*shape, seed=sender), seeded(sender)) for sender in range(3)]
        for shape in shapes
    ]
    together = normal(2000)
    apart = together.clone()
    codec.add_parts(payloads, together, places, shapes, 0.25)
    for own, place, shape in zip(payloads, places, shapes, strict=True):
        for payload in own:
            codec.add_decoded(payload, apart[place.start : place.stop].view(shape), 0.25)
    assert together.equal(apart)


@pytest.mark.parametrize("larger", [0, 1])
def test_an_index_behind_its_part_is_refused(larger):
    codec, shapes = make_codec("dgc(ratio=0.5)"), [Size([1200]), Size([700])]
    payloads = [[codec.encode(normal(*shape), seeded())] for shape in shapes]
    beyond = torch.zeros(shapes[larger].numel() + 1)
    beyond[-1] = 1
    payloads[larger] = [codec.encode(beyond, seeded())]
    out = torch.zeros(2000)
    with pytest.raises(CodecError, match=f"not 1 indices below {shapes[larger].numel()}"):
        codec.add_parts(payloads, out, PLACES, shapes)
    assert not out.any()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=300), st.floats(0.001, 1))
def test_topk_is_what_sorting_gives(values, ratio):
    gradient = torch.tensor(values)
    k = max(1, round(ratio * len(values)))
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:k]
    expected = torch.zeros(len(values))
    expected[order] = gradient[order]
    assert sent(f"topk(ratio={ratio})", gradient).equal(expected)


def test_threshold_is_inclusive():
    gradient = torch.tensor([0.5, -0.5, 0.49999, 0.0])
    assert sent("threshold(value=0.5)", gradient).tolist() == [0.5, -0.5, 0.0, 0.0]
    assert not sent("threshold(value=1)", gradient).any()


@pytest.mark.slow
def test_randk_has_the_variance_of_theory():
    gradient = normal(60)
    drawn = draws(make_codec("randk(ratio=0.1)"), gradient, 3000)
    errors = (drawn - gradient).square().sum(1).tolist()
    theory = (60 / 6 - 1) * float(gradient.square().sum())
    spread = torch.tensor(errors).std() / math.sqrt(len(errors))
    assert abs(sum(errors) / len(errors) - theory) < 5 * float(spread)
    assert make_codec("randk").shared_seed


def test_randk_payloads_of_one_seed_add():
    codec = make_codec("randk(ratio=0.1)")
    first, second = (codec.encode(normal(500, seed=s), seeded(9)) for s in range(2))
    assert first.seed.equal(second.seed)
    total = type(first)(first.seed, first.values + second.values)
    expected = codec.decode(first, Size([500])) + codec.decode(second, Size([500]))
    torch.testing.assert_close(codec.decode(total, Size([500])), expected)
    assert Law.SUMMABLE in codec.laws


def test_chunks_are_those_of_largest_norm():
    gradient = normal(1000)
    norms = [float(part.abs().sum()) for part in gradient.split(64)]
    best = max(range(16), key=lambda i: norms[i])
    expected = torch.zeros(1000)
    expected[64 * best : 64 * best + 64] = gradient[64 * best : 64 * best + 64]
    assert sent("chunktopk(ratio=0.05)", gradient).equal(expected)


@pytest.mark.parametrize("kind", ["normal", "sorted", "one loud stretch", "equal", "zero"])
@pytest.mark.parametrize("ratio", [0.001, 0.01])
def test_dgc_sends_about_the_ratio_and_never_chooses_by_index(kind, ratio):
    n = 200_000
    gradient = {
        "normal": normal(n),
        "sorted": normal(n).sort().values,
        "one loud stretch": torch.cat([normal(n - 5000), 100 * normal(5000)]),
        "equal": torch.ones(n),
        "zero": torch.zeros(n),
    }[kind]
    decoded = sent(f"dgc(ratio={ratio})", gradient, 7)
    k = round(n * ratio)
    assert int(decoded.count_nonzero()) <= 1.3 * k
    if kind == "zero":
        return
    assert int(decoded.count_nonzero()) >= 0.8 * k
    smallest = decoded[decoded != 0].abs().min()
    assert not (gradient[decoded == 0].abs() > smallest).any()


def test_dgc_samples_a_short_gradient_whole():
    assert DGC(ratio=0.01, least=1).sample(200, seeded(), CPU) == (range(200), 2)
    assert DGC(ratio=0.01, sample_ratio=1.0).sample(9000, seeded(), CPU) == (range(9000), 90)


def test_dgc_has_the_published_settings_of_its_sampler():
    gradient = normal(200_000)
    strided, rank = DGC(ratio=0.01).sample(200_000, seeded(), CPU)
    assert (strided.step, rank, strided.stop) == (129, math.ceil(len(strided) / 100), 200_000)
    scattered, rank = DGC(strided_sample=False).sample(100_000, seeded(), CPU)
    assert (len(scattered), rank) == (2000, 2)
    assert scattered.equal(scattered.sort().values)
    assert scattered.diff().unique().numel() > 100
    # With a threshold far too high, entries found depend on how often it may be lowered.
    high = int(torch.tensor([100.0]).view(torch.int32))

    def found(codec: DGC) -> int:
        search = WholeSearch(gradient, None)
        return len(select.adapted(search.above, high, codec.bounds(len(search)))[1])

    counts = [found(DGC(iterations=often)) for often in (13, 14, 15, 16)]
    assert counts[0] < counts[1] < counts[2] < counts[3]
    few = DGC(iterations=15, upper_bound=1.0)
    assert found(few) < 200
    assert few.max_count(gradient.shape) == 200
    for setting in ("sample_ratio=0", "sample_ratio=1.5", "upper_bound=0.9", "iterations=-1"):
        with pytest.raises(ConfigError, match=f"dgc: {setting.split('=')[0]} must be"):
            make_codec(f"dgc({setting})")


@pytest.mark.parametrize("code", ["dgc", "dragonn"])
def test_a_small_layer_sends_more_than_its_share(code):
    """Checks a layer of 500 entries: one entry a step would delay the others by 500 steps."""
    gradient = normal(500)
    few = int(sent(f"{code}(ratio=0.002, least=1)", gradient, 3).count_nonzero())
    assert few <= 8
    assert 40 <= int(sent(f"{code}(ratio=0.002)", gradient, 3).count_nonzero()) <= 1.3 * 64
    assert int(sent(code, normal(40), 3).count_nonzero()) <= 40
    with pytest.raises(ConfigError, match=f"{code}: least must be 1 or more, got 0"):
        make_codec(f"{code}(least=0)")


def test_dgc_warms_up_by_list_and_by_formula():
    assert WARM_UP == (0.25, 0.063, 0.015, 0.004, 0.001)
    assert warm_up(0.001, 4) == pytest.approx([0.001 ** ((e + 1) / 5) for e in range(5)])
    assert warm_up(0.01, 0) == (0.01,)
    for ratio, epochs in ((0.0, 1), (1.5, 1), (0.1, -1)):
        with pytest.raises(ConfigError, match="dgc"):
            warm_up(ratio, epochs)


def test_dragonn_loses_what_collides_and_no_more():
    gradient = normal(400_000)
    codec = Dragonn(ratio=0.01)
    low = codec.sampled_threshold(WholeSearch(gradient, None), seeded(2))
    hits = int((gradient.abs().view(torch.int32) >= low).sum())
    slots = 16_000
    survive = slots * (1 - (1 - 1 / slots) ** hits)
    decoded = sent("dragonn(ratio=0.01)", gradient, 2)
    assert int(decoded.count_nonzero()) == pytest.approx(survive, rel=0.02)
    assert abs(hits - 4000) < 600
    sent_again = sent("dragonn(ratio=0.01)", gradient, 3)
    assert not sent_again.equal(decoded)


def test_dragonn_is_bounded_and_sends_small_gradients_whole():
    equal = sent("dragonn(ratio=0.01)", torch.ones(10_000))
    assert int(equal.count_nonzero()) <= 400
    gradient = normal(50)
    gradient[0] = 3.0  # index 0 is an index as any other
    assert sent("dragonn(threshold=50)", gradient).equal(gradient)


@pytest.mark.parametrize("code", ["topk(ratio=0.1)", "topk(ratio=0.1, values=fp16)"])
@pytest.mark.parametrize("count", [-1, 0, 9, 11, 10**12])
def test_a_strange_count_is_refused(code, count):
    codec = make_codec(code)
    payload = codec.encode(normal(100), seeded())
    strange = Sparse(torch.tensor([count]), payload.indices, payload.values)
    total = torch.ones(100)
    with pytest.raises(CodecError, match=r"^topk"):
        codec.add_decoded(strange, total)
    assert total.equal(torch.ones(100))


def test_values_that_are_all_zero_can_be_coded():
    for code in ("topk(values=fp16)", "dgc(values=fp16)", "threshold(values=bf16)"):
        assert not sent(code, torch.zeros(300)).any()


@pytest.mark.parametrize("code", ["topk", "threshold", "dgc"])
def test_values_travel_as_they_are_unless_a_codec_is_named(code):
    named = make_codec(f"{code}(values=sgd)")
    assert named == make_codec(code)
    assert str(named) == code
    _, _, values = named.sections(named.encode(torch.zeros(300), seeded()))
    assert not len(values)  # not even one zero is sent
    # Frames of earlier versions sent one zero where `sgd` was named.
    earlier = named.assemble(iter([torch.tensor([0]), torch.empty(0).byte(), torch.zeros(1)]))
    assert not named.decode(earlier, Size([300])).any()


@pytest.mark.parametrize(
    "spec",
    [
        "topk(ratio=0)",
        "topk(ratio=1.1)",
        "threshold(value=0)",
        "randk(ratio=-1)",
        "chunktopk(chunk=0)",
        "tiletopk(ratio=0)",
        "tiletopk(tile=0)",
        "tiletopk(tile=2000)",
        "dgc(ratio=2)",
        "dragonn(threshold=-1)",
        "topk(values=svd)",
    ],
)
def test_bad_settings_are_refused(spec):
    with pytest.raises(ConfigError, match=spec.split("(", maxsplit=1)[0]):
        make_codec(spec)
