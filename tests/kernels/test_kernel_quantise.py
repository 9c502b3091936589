"""Stochastic rounding and its entropy coder: all backends, against plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import Backend, backends, every_backend
from support.draws import normal
from support.messages import message
from torch import Tensor

from atomo.kernels import entropy, sign
from atomo.kernels.entropy import codes as coder
from atomo.kernels.quantise import EUCLIDEAN, FORMS, GIVEN, LARGEST, LevelForm

each_backend = every_backend("quantise", interpreted=False)
every_form = pytest.mark.parametrize("form", FORMS, ids=str)


def quantised(
    backend: Backend,
    values: Tensor,
    bucket: int,
    kind: int,
    highest: int,
    form: LevelForm,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Norms, symbols and escapes."""
    norms = torch.empty(-(-len(values) // bucket))
    result = backend.quantise(values, norms, bucket, kind, highest, form, seed)
    assert result is not None
    return norms, *result


def levels_by_hand(symbols: Tensor, escapes: Tensor, form: LevelForm, n: int) -> list[int]:
    """Reads the layout as `kernels/quantise` describes it, one entry at a time."""
    levels, codes, extra, start, at = [], symbols.tolist(), escapes.tolist(), 0, 0
    while start < n:
        size = min(n - start, 512 * form.digits)
        columns = -(-size // form.digits)
        rows = [[0] * columns for _ in range(form.digits)]
        for j in range(columns):
            code = codes[at + j]
            for d in range(form.digits):
                if code == form.escape:
                    rows[d][j] = extra.pop(0)
                else:
                    rows[d][j] = code // form.base**d % form.base - form.base // 2
        levels += [level for row in rows for level in row][:size]
        start, at = start + size, at + columns
    assert not extra
    assert at == len(symbols)
    return levels


@each_backend
@every_form
@pytest.mark.parametrize("n", [1, 4, 5, 511, 2560, 2561, 5200])
@pytest.mark.parametrize(("bucket", "highest"), [(512, 1), (7, 1), (1000, 3)])
def test_every_level_is_a_neighbour_of_the_exact_quotient(backend, form, n, bucket, highest):
    values = normal(n)
    bucket = min(bucket, n)
    if bucket < 100:
        highest = 1  # few entries to a norm: higher levels would be more escapes than there is room
    _, symbols, escapes = quantised(backend, values, bucket, EUCLIDEAN, highest, form)
    levels = torch.tensor(levels_by_hand(symbols, escapes, form, n))
    parts = values.double().split(bucket)
    exact = torch.cat([part * highest / part.norm() for part in parts])
    assert bool(((levels - exact).abs() < 1 + 1e-5).all())
    assert int(levels.abs().max()) <= highest
    assert bool((levels * exact >= 0).all())


@each_backend
@every_form
@pytest.mark.parametrize("kind", [EUCLIDEAN, LARGEST])
@pytest.mark.parametrize("n", [1, 700, 5200])
def test_decoding_is_norm_times_level(backend, form, kind, n):
    values = normal(n)
    highest = form.base // 2
    bucket = min(512, n)
    norms, symbols, escapes = quantised(backend, values, bucket, kind, highest, form)
    levels = torch.tensor(levels_by_hand(symbols, escapes, form, n))
    units = norms.repeat_interleave(bucket)[:n] / highest
    out = torch.ones(n)
    backend.add_levels(symbols, escapes, norms, bucket, highest, form, out, 0.5)
    torch.testing.assert_close(out, 1 + 0.5 * levels * units)


@each_backend
def test_levels_out_of_reach_escape(backend):
    values = torch.zeros(3000)
    values[[3, 700, 2999]] = torch.tensor([5.0, -5.0, 5.0])
    _, symbols, escapes = quantised(backend, values, 100, EUCLIDEAN, 255, FORMS[1])
    levels = levels_by_hand(symbols, escapes, FORMS[1], 3000)
    assert [levels[3], levels[700], levels[2999]] == [255, -255, 255]
    assert len(escapes) == 6


@each_backend
def test_too_many_escapes_give_up(backend):
    values, norms = torch.ones(3000), torch.empty(3000)
    assert backend.quantise(values, norms, 1, EUCLIDEAN, 255, FORMS[0], 0) is None


@each_backend
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_norm_that_is_not_finite_is_refused(backend, bad):
    values = normal(3000).index_fill_(0, torch.tensor([2000, 2001]), bad)
    with pytest.raises(ValueError, match="NaN, infinity, or a norm"):
        backend.quantise(values, torch.empty(6), 512, EUCLIDEAN, 1, FORMS[0], 0)


@every_form
@pytest.mark.parametrize("kind", [EUCLIDEAN, LARGEST])
@pytest.mark.parametrize("n", [1, 511, 2561, 9001])
@pytest.mark.parametrize(("bucket", "size"), [(512, 1.0), (100, 1e-35), (9, 1e35)])
def test_all_backends_give_the_same_bytes(form, kind, n, bucket, size):
    """Sums in another order may round a norm to its neighbour, so all get the norms of one."""
    values, seed = normal(n) * size, 2**63 - 7
    highest = 255 if form == FORMS[-1] else form.base // 2  # some of 255 levels escape
    first, *remaining = backends("quantise", interpreted=False)
    norms, *packed = quantised(first, values, bucket, kind, highest, form, seed)
    for backend in remaining:
        result = quantised(backend, values, bucket, kind, highest, form, seed)
        torch.testing.assert_close(result[0], norms, rtol=2e-7, atol=0)
        with_norms = backend.quantise(values, norms, bucket, GIVEN, highest, form, seed)
        assert with_norms is not None
        for part, same in zip(with_norms, packed, strict=True):
            assert part.equal(same)


@pytest.mark.parametrize(
    ("form", "bucket", "kind", "highest"),
    [
        # One bucket a row, in whole tiles and in a shorter one; then escapes from one bucket.
        (FORMS[1], 512, EUCLIDEAN, 7),
        pytest.param(FORMS[0], 100, LARGEST, 1, marks=pytest.mark.slow),
        pytest.param(FORMS[2], 5200, LARGEST, 255, marks=pytest.mark.slow),
    ],
)
def test_triton_packs_and_adds_what_numba_does(form, bucket, kind, highest):
    values, seed = normal(5200), 2**63 - 7
    first, triton = Backend("quantise", "cpu"), Backend("quantise", "cuda")
    norms, *packed = quantised(first, values, bucket, kind, highest, form, seed)
    own, *_ = quantised(triton, values, bucket, kind, highest, form, seed)
    torch.testing.assert_close(own, norms, rtol=2e-7, atol=0)  # sums have another order
    with_norms = triton.quantise(values, norms, bucket, GIVEN, highest, form, seed)
    assert [part.tolist() for part in with_norms] == [part.tolist() for part in packed]
    rows = packed[0][None], form.escape
    assert triton.largest_and_counts(*rows) == first.largest_and_counts(*rows)
    outs = [normal(5200, seed=3) for _ in range(2)]
    for backend, out in zip((first, triton), outs, strict=True):
        backend.add_levels(*packed, norms, bucket, highest, form, out, 0.3)
    assert outs[0].equal(outs[1])


@pytest.mark.slow
def test_triton_refuses_norms_and_gives_up_escapes_as_numba_does():
    backend, bad = Backend("quantise", "cuda"), normal(600)
    bad[590] = float("nan")
    with pytest.raises(ValueError, match="NaN, infinity, or a norm"):
        backend.quantise(bad, torch.empty(2), 512, EUCLIDEAN, 1, FORMS[0], 0)
    assert (
        backend.quantise(torch.ones(600), torch.empty(600), 1, EUCLIDEAN, 255, FORMS[0], 0) is None
    )
    peak, squares = backend.moments(normal(1500))
    assert peak == float(normal(1500).abs().max())
    assert abs(squares - float(normal(1500).double().square().sum())) < 1e-9


@each_backend
def test_the_random_numbers_are_uniform_and_follow_the_seed(backend):
    values = torch.full((200_000,), 0.3)
    norms = torch.ones(1)
    draws = [backend.quantise(values, norms, 200_000, GIVEN, 1, FORMS[0], s) for s in (1, 1, 2)]
    symbols = [draw[0] for draw in draws if draw is not None]
    assert symbols[0].equal(symbols[1])
    assert not symbols[0].equal(symbols[2])
    hits = torch.tensor(levels_by_hand(symbols[0], torch.empty(0), FORMS[0], 200_000)).double()
    assert abs(hits.mean() - 0.3) < 5 * (0.21 / 200_000) ** 0.5
    for lag in (1, 2, 512, 2560):  # neighbours, rows and tiles are independent
        product = (hits[lag:] - 0.3) * (hits[:-lag] - 0.3)
        assert abs(product.mean()) < 5 * 0.21 / 200_000**0.5


@every_backend("powers")
@pytest.mark.parametrize("n", [5, 4001, 20 * 2048])
def test_powers_of_two_stay_and_others_go_to_a_neighbour(backend, n):
    values = torch.cat([torch.tensor([0.0, 1.0, -2.0, 0.25]), normal(n)[4:]])
    exponents, words, largest = backend.pack_powers(values, 2**63 - 9)
    expected, signs, _ = Backend("powers", "cpu").pack_powers(values, 2**63 - 9)
    assert exponents.equal(expected)
    assert words.equal(signs)
    assert words.equal(sign.pack_signs(values)[0])
    assert largest == float(values.abs().max())
    assert exponents[:4].tolist() == [0, 127, 128, 125]
    powers = torch.pow(2.0, exponents[4:].double() - 127)
    ratio = powers / values[4:].double().abs()
    assert ((ratio > 0.5) & (ratio < 2)).all()


@every_backend("powers")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_what_has_no_power_above_it_shows_in_the_largest(backend, value):
    values = normal(2100)
    values[2075] = -value
    assert not backend.pack_powers(values, 3)[2] < 2.0**127


@every_backend("powers")
@pytest.mark.parametrize("n", [1, 33, 2048, 5000])
def test_powers_come_back_with_their_signs(backend, n):
    values, out = normal(n), normal(n, seed=2)
    exponents, words, _ = backend.pack_powers(values, 5)
    magnitudes = torch.where(exponents == 0, 0.0, torch.pow(2.0, exponents.float() - 127))
    expected, same = out + 0.5 * torch.copysign(magnitudes, values), out.clone()
    backend.add_powers(exponents, words, out, 0.5)
    Backend("powers", "cpu").add_powers(exponents, words, same, 0.5)
    torch.testing.assert_close(out, expected)
    assert out.equal(same)


@pytest.mark.parametrize("kind", ["even", "one", "steep", "trits"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 127, 128, 129, 1000, 4099, 600_001])
def test_messages_come_back(kind, n):
    symbols = message(kind, n)
    words = entropy.compress(symbols, trits=kind == "trits")
    assert len(words) <= n // 4 + 1 + entropy.OVERHEAD
    assert entropy.decompress(words, n).equal(symbols)
    assert entropy.decompress(entropy.compress(symbols, coded=False), n).equal(symbols)


@pytest.mark.parametrize(("kind", "factor"), [("even", 1.001), ("steep", 1.03), ("trits", 1.04)])
def test_messages_are_about_as_small_as_their_entropy(kind, factor):
    symbols = message(kind, 600_000)
    counts = np.bincount(symbols.numpy(), minlength=256)
    p = counts[counts > 0] / counts.sum()
    bits = -(p * np.log2(p)).sum() * len(symbols)
    assert 32 * len(entropy.compress(symbols, trits=kind == "trits")) <= factor * bits + 32 * 50


@pytest.mark.parametrize(("saved", "coded"), [(255, False), (253, False), (230, True)])
def test_a_code_that_saves_next_to_nothing_is_not_sent(saved, coded):
    symbols = message("even", 600_000).clamp(max=saved)
    words = entropy.compress(symbols)
    assert (int(words[1]) == entropy.CODED) == coded
    assert (len(words) < 0.99 * 600_000 / 4) == coded


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=256))
def test_every_code_is_complete_and_short(counts):
    lengths = coder.code_lengths(np.array(counts + [0] * (256 - len(counts)), np.int64))
    used = lengths[lengths > 0]
    assert used.max() <= coder.MAX_CODE_BITS
    assert (2.0**-used).sum() == 1
    assert all(lengths[symbol] for symbol, count in enumerate(counts) if count)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.sampled_from(["even", "steep", "trits"]),
    st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 31)), min_size=1, max_size=4),
)
def test_damaged_words_decode_or_are_refused(kind, flips):
    words = entropy.compress(message(kind, 900), trits=kind == "trits").clone()
    for place, bit in flips:
        words[place % len(words)] ^= 1 << bit if bit < 31 else -(2**31)
    try:
        assert len(entropy.decompress(words, 900)) == 900
    except ValueError:
        return


@pytest.mark.parametrize(
    "words", [[], [900], [900, 1, 0, 0, 0], [2**30, 1, 0, 0, 0], [5, 9, 0, 0, 0], [-1, 1, 0, 0, 0]]
)
def test_what_is_no_message_is_refused(words):
    with pytest.raises(ValueError, match=r"words|symbols"):
        entropy.decompress(torch.tensor(words, dtype=torch.int32), 900)
