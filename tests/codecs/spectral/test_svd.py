"""Spectral ATOMO: unbiased, with the closed-form variance, for every shape and on every path."""

from types import SimpleNamespace

import pytest
import torch
from support.draws import draws, draws_at_once, normal, roundtrip, seeded
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.codecs.spectral import chunks, spectrum
from atomo.codecs.spectral.atoms import probabilities, relative_probabilities, variance
from atomo.codecs.spectral.matricise import matrix_shapes
from atomo.errors import CodecError, ConfigError

DRAWS = 2000


def with_singular_values(m: int, n: int, values: Tensor) -> Tensor:
    left = torch.linalg.qr(normal(m, len(values)).double()).Q
    right = torch.linalg.qr(normal(n, len(values), seed=2).double()).Q
    return (left * values @ right.T).float()


def decaying(r: int, ratio: float) -> Tensor:
    return torch.logspace(0, torch.tensor(ratio).log10().item(), r, dtype=torch.float64)


def lapack(gradient: Tensor, matricisation: str = "pairs") -> Tensor:
    m, n = matrix_shapes(gradient.shape, matricisation)[0]
    return torch.linalg.svdvals(gradient.reshape(m, n).double())


def relative(error: Tensor, gradient: Tensor) -> float:
    return float(error.double().norm() / gradient.double().norm())


@pytest.fixture
def large_path(monkeypatch):
    monkeypatch.setattr(spectrum, "EXACT", 2)
    monkeypatch.setattr(spectrum, "SKETCH", 4)
    monkeypatch.setattr(spectrum, "OVERSAMPLING", 2)
    monkeypatch.setattr(chunks, "CHUNK", 200)


# ---- unbiased, with the variance of the closed form


def assert_unbiased(drawn: Tensor, gradient: Tensor, closed_form: float) -> None:
    drawn = drawn.double()
    error = drawn.std(0) / DRAWS**0.5
    floor = 1e-6 * float(gradient.norm())
    assert ((drawn.mean(0) - gradient).abs() <= 5 * error + floor).all()
    empirical = float((drawn - gradient).square().flatten(1).sum(1).mean())
    assert empirical == pytest.approx(closed_form, rel=0.05, abs=floor**2)


@pytest.mark.slow(
    cases=(
        "ill",
        "pairs",
        "tall",
    )
)
@pytest.mark.parametrize(
    ("spec", "gradient"),
    [
        ("svd(rank=0)", normal(9, 14)),
        ("svd(rank=1)", normal(14, 9)),
        ("svd(rank=1, matricisation=filters)", normal(4, 3, 3, 2)),
        ("svd(rank=3)", normal(6, 4, 3, 3)),
        ("svd(rank=3)", with_singular_values(20, 8, decaying(8, 1e-6))),
        ("svd(rank=2)", with_singular_values(8, 20, torch.tensor([3.0, 2, 1, 1]).double())),
    ],
    ids=["relative", "tall", "filters", "pairs", "ill-conditioned", "rank-deficient"],
)
def test_unbiased_with_the_closed_form_variance(spec, gradient):
    codec = make_codec(spec)
    values = lapack(gradient, codec.matricisation)
    values[values < 1e-7 * values[0]] = 0
    budget = float(codec.rank)
    chances = probabilities(values, budget) if budget else relative_probabilities(values)
    drawn = draws_at_once(codec, gradient, DRAWS)
    assert_unbiased(drawn, gradient, variance(values, chances))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("large_path")
def test_a_large_matrix_is_unbiased_with_the_variance_of_its_own_atoms():
    gradient = with_singular_values(12, 24, decaying(12, 1e-2))
    bases = [spectrum.decompose(gradient.T, 2, seeded(seed)).coefficients for seed in range(200)]
    expected = sum(variance(c, probabilities(c, 2.0)) for c in bases) / len(bases)
    assert_unbiased(draws(make_codec("svd(rank=2)"), gradient, DRAWS), gradient, expected)
    values = lapack(gradient)
    assert expected <= 1.2 * variance(values, probabilities(values, 2.0))


@pytest.mark.usefixtures("large_path")
def test_the_atoms_of_a_large_matrix_are_orthogonal_and_sum_to_it():
    matrix = normal(40, 15)
    atoms = spectrum.decompose(matrix, 3, seeded(0))
    basis = atoms.vectors(torch.arange(15)).double()
    torch.testing.assert_close(basis @ basis.T, torch.eye(15).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(atoms.coefficients, (matrix.double() @ basis.T).norm(dim=0))


@pytest.mark.slow
def test_the_expected_number_of_atoms_is_the_rank():
    codec, gradient = make_codec("svd(rank=2)"), normal(9, 9)
    payloads = codec.encode_all([gradient] * DRAWS, [*map(seeded, range(DRAWS))])
    counts = torch.tensor([len(payload.left) for payload in payloads])
    assert abs(float(counts.double().mean()) - 2) <= 5 * float(counts.double().std()) / DRAWS**0.5


@pytest.mark.slow
def test_an_empty_draw_is_a_zero_message_and_is_not_drawn_again():
    codec = make_codec("svd(rank=1)")
    gradient = torch.eye(8)
    payloads = [codec.encode(gradient, seeded(seed)) for seed in range(500)]
    empty = [payload for payload in payloads if not len(payload.left)]
    assert len(empty) / 500 == pytest.approx((7 / 8) ** 8, abs=0.1)
    assert not codec.decode(empty[0], gradient.shape).any()


# ---- the spectrum


@pytest.mark.parametrize("ratio", [0.9, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("columns", [5, 18, 40, 120])
def test_singular_values_are_those_of_lapack(columns, ratio, monkeypatch):
    monkeypatch.setattr(spectrum, "BLOCK", 64)  # 300 rows: four blocks and a rest
    matrix = with_singular_values(300, columns, decaying(columns, ratio))
    actual = spectrum.decompose(matrix, 3, seeded(0)).coefficients.flip(0)
    torch.testing.assert_close(actual, lapack(matrix), rtol=0.01, atol=3e-8)


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("path", ["small", "large_path"])
def test_any_finite_size_keeps_its_spectrum(path, size, request):
    if path == "large_path":
        request.getfixturevalue(path)
    matrix = normal(30, 6) * size
    assert relative(roundtrip(make_codec("svd(rank=6)"), matrix) - matrix, matrix) < 3e-3
    actual = spectrum.decompose(matrix, 6, seeded(0)).coefficients
    assert float(actual.square().sum().sqrt()) == pytest.approx(float(matrix.double().norm()))


@pytest.mark.parametrize("path", ["small", "large_path"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("shape", [(6, 5), (3, 40), (4, 6, 3, 3), (200, 120)])
def test_nan_and_infinity_are_refused(path, value, shape, request):
    if path == "large_path":
        request.getfixturevalue(path)
    gradient = normal(*shape)
    gradient.flatten()[7] = value
    with pytest.raises(CodecError, match="svd: the gradient holds NaN or infinity"):
        make_codec("svd").encode(gradient, seeded(0))


def test_atoms_beyond_float32_are_refused():
    gradient = torch.full((40, 40), 3e38)
    with pytest.raises(CodecError, match="svd: atoms of this gradient overflow"):
        make_codec("svd").encode(gradient, seeded(0))


# ---- shapes

SHAPES = [
    ((7, 5), (7, 5), (7, 5)),
    ((1, 5), (1, 5), (1, 5)),
    ((5, 1), (5, 1), (5, 1)),
    ((6, 4, 1, 1), (6, 4), (6, 4)),
    ((6, 4, 3, 3), (12, 18), (6, 36)),
    ((5, 3, 3, 3), (15, 9), (5, 27)),
    ((64, 3, 5, 5), (96, 50), (64, 75)),
    ((4, 2, 3, 3), (4, 18), (4, 18)),
    ((6, 3, 7), (9, 14), (6, 21)),
    ((5, 3, 1), (5, 3), (5, 3)),
    ((3, 4, 2, 3, 2), (6, 24), (3, 48)),
    ((1, 1, 3, 3), (1, 9), (1, 9)),
]


@pytest.mark.parametrize(("shape", "pairs", "filters"), SHAPES, ids=str)
def test_matricisation(shape, pairs, filters):
    assert matrix_shapes(Size(shape), "pairs") == (pairs,)
    assert matrix_shapes(Size(shape), "filters") == (filters,)
    assert matrix_shapes(Size(shape), "auto") == (
        (pairs,) if pairs == filters else (pairs, filters)
    )


@pytest.mark.parametrize("matricisation", ["pairs", "filters", "auto"])
@pytest.mark.parametrize("shape", [shape for shape, _, _ in SHAPES], ids=str)
@pytest.mark.parametrize("selection", ["sample", "top"])
def test_with_rank_to_spare_nothing_is_lost(shape, matricisation, selection):
    codec = make_codec(f"svd(rank=99, matricisation={matricisation}, selection={selection})")
    gradient = normal(*shape)
    payload = codec.encode(gradient, seeded(0))
    assert relative(codec.decode(payload, gradient.shape) - gradient, gradient) < 1e-6
    assert payload.left.is_contiguous()
    assert payload.right.is_contiguous()


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("path", ["small", "large_path"])
def test_a_budget_of_the_rank_is_lossless(rank, path, request):
    if path == "large_path":
        request.getfixturevalue(path)
    gradient = with_singular_values(50, 20, torch.tensor([5.0, 2.0, 1e-2]).double())
    assert (
        relative(roundtrip(make_codec(f"svd(rank={rank})"), gradient) - gradient, gradient) < 2e-6
    )


@pytest.mark.parametrize("winner", ["pairs", "filters"])
def test_auto_takes_the_smaller_indicator(winner):
    shape = Size((8, 6, 3, 3))
    m, n = matrix_shapes(shape, winner)[0]
    gradient = (normal(m, 1) @ normal(1, n, seed=2)).view(shape)
    indicators = {
        name: float(lapack(gradient, name).sum()) * sum(matrix_shapes(shape, name)[0]) ** 0.5
        for name in ("pairs", "filters")
    }
    assert min(indicators, key=lambda name: indicators[name]) == winner
    payload = make_codec("svd(matricisation=auto)").encode(gradient, seeded(0))
    assert (payload.left.shape[1], payload.right.shape[1]) == (m, n)


# ---- the largest atoms


@pytest.mark.parametrize("shape", [(30, 12), (12, 30), (8, 6, 3, 3)])
@pytest.mark.parametrize("rank", [1, 4])
def test_top_is_the_truncated_singular_value_decomposition(shape, rank):
    gradient = normal(*shape)
    error = gradient - roundtrip(make_codec(f"svd(rank={rank}, selection=top)"), gradient)
    assert float(error.norm()) == pytest.approx(float(lapack(gradient)[rank:].norm()), rel=1e-5)


@pytest.mark.usefixtures("large_path")
def test_top_of_a_large_matrix_is_close_to_it():
    gradient = with_singular_values(60, 40, decaying(40, 1e-4))
    error = gradient - roundtrip(make_codec("svd(rank=5, selection=top)"), gradient)
    assert float(error.norm()) == pytest.approx(float(lapack(gradient)[5:].norm()), rel=0.02)


# ---- the receiver


def factors(k_left: int, m: int, k_right: int, n: int) -> SimpleNamespace:
    return SimpleNamespace(left=torch.ones(k_left, m), right=torch.ones(k_right, n))


@pytest.mark.parametrize(
    "payload",
    [
        factors(2, 12, 3, 18),
        factors(2, 18, 2, 12),
        factors(2, 6, 2, 36),
        factors(13, 12, 13, 18),
        SimpleNamespace(left=torch.ones(12), right=torch.ones(18)),
        SimpleNamespace(left=torch.ones(1, 2, 12), right=torch.ones(1, 18)),
    ],
    ids=["counts", "swapped", "other matricisation", "too many", "vectors", "three dimensions"],
)
def test_a_payload_that_does_not_fit_is_refused(payload):
    codec, total = make_codec("svd"), torch.ones(6, 4, 3, 3)
    forged = codec.encode(normal(6, 4, 3, 3), seeded(0))
    for name, value in vars(payload).items():
        object.__setattr__(forged, name, value)
    with pytest.raises(CodecError, match=r"^svd: factors .* which is read as \(12, 18\)$"):
        codec.add_decoded(forged, total)
    assert total.equal(torch.ones(6, 4, 3, 3))


@pytest.mark.parametrize("shape", [(6, 8), (6, 4, 3, 3)])
@pytest.mark.parametrize("rank", [1, 2])
def test_adds_to_a_sum_that_is_not_contiguous(shape, rank):
    codec = make_codec(f"svd(rank={rank}, selection=top)")
    payload = codec.encode(normal(*shape), seeded(0))
    storage = torch.ones(*shape, 2)
    codec.add_decoded(payload, storage[..., 0], scale=0.5)
    expected = 1 + 0.5 * codec.decode(payload, Size(shape))
    torch.testing.assert_close(storage[..., 0], expected)
    assert (storage[..., 1] == 1).all()


@pytest.mark.parametrize("entries", [1, 2, 7, 30, 31])
def test_a_vector_is_folded_to_a_square(entries):
    codec, vector = make_codec("svd(rank=40)"), normal(entries)  # all atoms: only rounding is lost
    payload = codec.encode(vector, seeded(0))
    m, n = payload.left.shape[1], payload.right.shape[1]
    assert 0 <= m * n - entries < m
    assert m - n in (0, 1)
    torch.testing.assert_close(codec.decode(payload, vector.shape), vector)
    scattered = torch.ones(entries, 2)
    codec.add_decoded(payload, scattered[:, 0], scale=0.5)
    torch.testing.assert_close(scattered[:, 0], 1 + 0.5 * vector)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("svd(rank=-1)", "svd: rank must be >= 0, got -1"),
        ("svd(rank=0, selection=top)", "svd: selection=top needs rank >= 1"),
        (
            "svd(matricisation=rows)",
            "must be one of pairs, filters, auto; got 'rows'",
        ),
        ("svd(selection=best)", "selection must be one of sample, top; got 'best'"),
    ],
)
def test_bad_settings(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_codec(spec)


def test_its_text_names_what_differs_from_the_defaults():
    spec = "svd(rank=2, matricisation=auto, selection=top)"
    assert str(make_codec(spec)) == spec
    assert str(make_codec("svd(rank=3)")) == "svd"
