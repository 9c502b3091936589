"""ATOMO in bases other than the spectral: coordinates, cosines, the choice, and coded factors."""

import math

import numpy as np
import pytest
import torch
from support.draws import draws, normal, roundtrip, seeded
from support.selection import slow_but
from torch import Size, Tensor

from atomo.codecs import Codec, Law, make_codec
from atomo.codecs.spectral.atoms import probabilities, variance
from atomo.codecs.spectral.fourier import cosines, transform
from atomo.errors import CodecError, ConfigError

DRAWS = 3000


def heavy(count: int) -> Tensor:
    return normal(count) * (2 * normal(count, seed=2)).exp()


def draws_of(codec: Codec, gradient: Tensor) -> Tensor:
    return draws(codec, gradient, DRAWS).double()


def algorithm_1(coefficients: list[float], budget: float) -> list[float]:
    """Runs the listing of the paper, line by line."""
    order = sorted(range(len(coefficients)), key=lambda i: -abs(coefficients[i]))
    sizes = [abs(coefficients[i]) for i in order]
    chances = [0.0] * len(sizes)
    i, s = 0, budget
    while i < len(sizes):
        tail = sum(sizes[i:])
        if sizes[i] * s <= tail:
            for k in range(i, len(sizes)):
                chances[order[k]] = s * sizes[k] / tail if tail else 0.0
            break
        chances[order[i]], s, i = 1.0, s - 1, i + 1
    return chances


# ---- coordinates


@pytest.mark.long(
    cases=(
        "heavy-20",
        "heavy-8",
        "normal-1.0",
        "normal-20",
    )
)
@pytest.mark.slow(cases=("normal-8",))
@pytest.mark.parametrize("budget", slow_but([8.0], [1.0, 8.0, 20.0]))
@pytest.mark.parametrize("gradient", [normal(60), heavy(60)], ids=["normal", "heavy"])
def test_entries_come_with_the_probabilities_and_the_variance_of_the_paper(gradient, budget):
    codec, expected = (
        make_codec(f"entrywise(budget={budget})"),
        algorithm_1(gradient.tolist(), budget),
    )
    draws = draws_of(codec, gradient)
    chances = torch.tensor(expected).double()
    seen = (draws != 0).double().mean(0)
    error = (chances * (1 - chances) / DRAWS).sqrt()
    assert ((seen - chances).abs() <= 5 * error + 2 / DRAWS).all()
    squares = (draws - gradient).square().sum(1)
    standard_error = float(squares.std()) / DRAWS**0.5
    assert abs(float(squares.mean()) - variance(gradient, chances)) <= 5 * standard_error


def test_certain_entries_are_exact_and_the_others_are_alike():
    gradient = heavy(500)
    decoded = roundtrip(make_codec("entrywise(budget=0.2)"), gradient)
    certain = probabilities(gradient, 100.0) == 1
    assert 0 < certain.sum() < 100
    assert decoded[certain].equal(gradient[certain])
    drawn = decoded[~certain & (decoded != 0)]
    assert drawn.abs().unique().numel() == 1
    assert (drawn.sign() == gradient[~certain & (decoded != 0)].sign()).all()


@pytest.mark.parametrize(("mode", "order"), [("qsgd", 2), ("terngrad", math.inf)])
def test_older_methods_are_points_of_the_curve(mode, order):
    """Checks that p = |g| / ||g||_2 is QSGD with one level and one bucket, and p = |g| / max|g|
    TernGrad."""
    gradient = normal(300)
    norm = float(gradient.double().norm(order))
    budget = float(gradient.double().abs().sum()) / norm
    expected_shares = gradient.double().abs() / norm
    torch.testing.assert_close(probabilities(gradient, budget), expected_shares)
    codec = make_codec(f"entrywise(mode={mode})")
    assert codec.rate(gradient) == pytest.approx(1 / norm, rel=1e-6)
    assert codec.rate(gradient) == pytest.approx(
        make_codec(f"entrywise(budget={budget})").rate(gradient), rel=1e-6
    )
    decoded = roundtrip(codec, gradient)
    sent = decoded[decoded != 0].double().abs()
    torch.testing.assert_close(sent, torch.full_like(sent, norm), rtol=1e-6, atol=0)


def test_a_budget_below_one_is_a_share_and_from_one_on_a_number():
    gradient = normal(20_000)
    share, number = (make_codec(f"entrywise(budget={b})").rate(gradient) for b in (0.01, 200.0))
    assert share == pytest.approx(number, rel=1e-12)
    few = make_codec("entrywise(budget=0.01)").rate(normal(10))
    assert few == make_codec("entrywise(budget=1)").rate(normal(10))


def test_a_budget_for_all_loses_nothing():
    gradient = heavy(50)
    gradient[::7] = 0
    assert roundtrip(make_codec("entrywise(budget=50)"), gradient).equal(gradient)


def test_a_sample_costs_about_its_entropy():
    gradient, codec = normal(1_000_000), make_codec("entrywise(budget=0.01)")
    payload = codec.encode(gradient, seeded(0))
    bits = 8 * sum(tensor.numel() * tensor.itemsize for tensor in codec.sections(payload))
    k = int(payload.counts[1])
    bound = (math.lgamma(1e6 + 1) - math.lgamma(k + 1) - math.lgamma(1e6 - k + 1)) / math.log(2)
    assert bits <= 1.03 * (bound + k)


# ---- cosines


@pytest.mark.parametrize("block", [2, 8, 64])
def test_the_cosines_are_orthonormal_and_those_of_the_dct(block):
    torch.testing.assert_close(
        cosines(block) @ cosines(block).T, torch.eye(block), atol=1e-5, rtol=0
    )
    entries = normal(2 * block + 1)
    filled = np.zeros(3 * block)
    filled[: len(entries)] = entries.numpy()
    slow = [
        sum(
            filled[start + j] * math.cos(math.pi / block * i * (j + 0.5)) for j in range(block)
        ) * math.sqrt((1 if i == 0 else 2) / block)
        for start in range(0, 3 * block, block)
        for i in range(block)
    ]  # fmt: skip
    torch.testing.assert_close(
        transform(entries, block).double(),
        torch.tensor(slow, dtype=torch.float64),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.long(cases=("64",))
@pytest.mark.slow
@pytest.mark.parametrize(("entries", "padded"), [(64, False), (61, True)])
def test_cosines_have_the_variance_of_the_closed_form(entries, padded):
    gradient, codec = normal(entries), make_codec("fourier(budget=6, block=16)")
    coefficients = transform(gradient, 16)
    squares = (draws_of(codec, gradient) - gradient).square().sum(1)
    closed, measured = (
        variance(coefficients, probabilities(coefficients, 6.0)),
        float(squares.mean()),
    )
    standard_error = float(squares.std()) / DRAWS**0.5
    assert measured <= closed + 5 * standard_error
    assert padded or measured >= closed - 5 * standard_error


def test_a_smooth_gradient_takes_few_cosines():
    gradient = torch.linspace(-1, 1, 4096).sin()
    errors = {
        spec: (roundtrip(make_codec(f"{spec}(budget=400)"), gradient) - gradient).norm()
        for spec in ("entrywise", "fourier")
    }
    assert errors["fourier"] < 0.2 * errors["entrywise"]


# ---- the choice


def spiky() -> Tensor:
    gradient = torch.zeros(40, 30)
    gradient[torch.arange(30), torch.arange(30)] = normal(30)
    return gradient


def low_rank() -> Tensor:
    return normal(40, 1) @ normal(1, 30, seed=2)


def smooth() -> Tensor:
    generator = torch.stack([torch.cos(0.01 * (i + 1) * torch.arange(64.0)) for i in range(64)])
    return generator + 1e-3 * normal(64, 64)


@pytest.mark.parametrize(
    ("gradient", "basis"), [(low_rank(), 0), (spiky(), 1)], ids=["low-rank", "spiky"]
)
def test_each_gradient_gets_its_basis(gradient, basis):
    codec = make_codec("atomo(rank=1)")
    payload = codec.encode(gradient, seeded(0))
    assert payload.basis.tolist() == [basis]
    named = make_codec(f"atomo(rank=1, basis={('svd', 'entrywise', 'fourier')[basis]})")
    assert codec.choose(gradient, seeded(0)) == named.choose(gradient, seeded(0))


def test_cosines_are_chosen_where_they_are_fewest():
    wave = cosines(64)[3].repeat(60) * normal(60).repeat_interleave(64)
    gradient = wave.view(60, 64)[:, torch.arange(64)] + 0  # every row the same cosine: rank 1
    mixed = torch.cat([cosines(64)[torch.randperm(64, generator=seeded(0))][:60]])
    assert make_codec("atomo").choose(mixed, seeded(0)) == 2
    assert make_codec("atomo").choose(gradient, seeded(0)) != 1


@pytest.mark.parametrize("basis", ["svd", "entrywise", "fourier"])
def test_a_chosen_basis_is_that_codec_and_survives_the_wire(basis):
    gradient, codec = normal(12, 10), make_codec(f"atomo(basis={basis}, rank=2)")
    payload = codec.encode(gradient, seeded(3))
    again = codec.assemble(iter(codec.sections(payload)))
    budget = f"budget={2 * 22}"
    spec = "svd(rank=2)" if basis == "svd" else f"{basis}({budget})"
    assert codec.decode(again, gradient.shape).equal(roundtrip(make_codec(spec), gradient, 3))


def test_an_unknown_basis_on_the_wire_is_refused():
    codec = make_codec("atomo")
    payload = codec.encode(normal(4, 4), seeded(0))
    payload.basis.fill_(3)
    with pytest.raises(CodecError, match="atomo: basis"):
        codec.decode(payload, Size((4, 4)))


# ---- coded factors


@pytest.mark.parametrize(
    ("spec", "law"),
    [
        ("svd(factors=sgd)", Law.UNBIASED),
        ("svd(factors=qsgd(bits=4))", Law.UNBIASED),
        ("svd(factors=fp16)", Law.CONTRACTION),
        ("svd(selection=top, factors=qsgd(bits=4))", Law.CONTRACTION),
    ],
)
def test_coded_factors_are_unbiased_where_their_codec_is(spec, law):
    assert make_codec(spec).laws == {law}


def test_factors_as_they_are_change_nothing():
    gradient = normal(20, 12)
    assert roundtrip(make_codec("svd(factors=sgd)"), gradient).equal(
        roundtrip(make_codec("svd"), gradient)
    )


@pytest.mark.parametrize("codec", ["fp16", "bf16", "svd"])
@pytest.mark.parametrize("selection", ["sample", "top"])
@pytest.mark.parametrize("size", [1e-42, 1.0, 1e30])
def test_biased_factors_are_never_farther_than_zero(codec, selection, size):
    if codec == "svd":
        with pytest.raises(ConfigError, match="factors must be a codec of plain entries"):
            make_codec("svd(factors=svd)")
        return
    codec = make_codec(f"svd(rank=2, selection={selection}, factors={codec})")
    if Law.UNBIASED in codec.laws:
        return
    for seed in range(20):
        gradient = size * normal(9, 7, seed=seed)
        error = (roundtrip(codec, gradient, seed).double() - gradient).norm()
        assert error <= (1 + 1e-3) * gradient.double().norm()


def test_sizes_of_factors_are_checked():
    codec = make_codec("svd(factors=fp16)")
    for sizes in ([0, 8], [7, 8], [1, 7], [1, -8], [2, 8]):
        payload = codec.encode(normal(8, 6), seeded(1))
        payload.sizes.copy_(torch.tensor(sizes, dtype=torch.int32))
        out = torch.ones(8, 6)
        with pytest.raises(CodecError, match="svd: factors"):
            codec.add_decoded(payload, out)
        assert out.equal(torch.ones(8, 6))


# ---- settings


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("entrywise(budget=0)", "budget must be a number of atoms above 0"),
        ("entrywise(mode=ternary)", "mode must be one of budget, qsgd, terngrad"),
        ("fourier(budget=-1)", "budget must be"),
        ("fourier(block=1)", "block must be in 2..1024"),
        ("atomo(basis=sines)", "basis must be one of auto, svd"),
        ("atomo(rank=0)", "rank must be >= 1"),
        ("atomo(block=5000)", "block must be in"),
    ],
)
def test_bad_settings_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_codec(spec)


@pytest.mark.parametrize("spec", ["entrywise", "fourier"])
def test_a_damaged_sample_is_refused(spec):
    codec = make_codec(f"{spec}(budget=0.3)")
    for name in ("counts", "drawn", "signs", "magnitude", "values"):
        payload = codec.encode(heavy(640), seeded(0))
        parts = {**vars(payload), name: getattr(payload, name)[:-1]}
        out = torch.ones(640)
        with pytest.raises(CodecError, match=spec):
            codec.add_decoded(type(payload)(**parts), out)
        assert out.equal(torch.ones(640))
