"""Matrices of low rank get the atoms that any matrix gets, and others are told from them."""

import pytest
import torch
from support.draws import normal, seeded, unchecked
from torch import Generator, Tensor

from atomo.codecs import make_codec
from atomo.codecs.spectral import spectrum
from atomo.codecs.spectral.low_rank import MOST_RANK, ROUNDING, decompose_low_rank
from atomo.codecs.spectral.spectrum import decompose
from atomo.errors import CodecError


def layer(rank: int, m: int = 700, n: int = 300, faintest: float = 1e-3) -> Tensor:
    """Returns the gradient of a linear layer for a batch of `rank` images, a few of them large."""
    errors = normal(rank, m) * torch.linspace(1.0, faintest, rank)[:, None] ** 2
    return errors.T @ normal(rank, n, seed=2).relu()


@pytest.fixture
def decompositions(monkeypatch):
    """Counts the matrices that `decompose` took for ones of low rank."""
    answers = []

    def watched(matrix: Tensor, generator: Generator) -> object:
        answers.append(decompose_low_rank(matrix, generator))
        return answers[-1]

    monkeypatch.setattr(spectrum, "decompose_low_rank", watched)
    return lambda: [answer is not None for answer in answers]


@pytest.mark.parametrize("rank", [0, 1, 2, 32, 64, MOST_RANK])
@pytest.mark.parametrize("transposed", [False, True])
def test_atoms_are_singular_and_sum_to_the_matrix(rank, transposed, decompositions):
    matrix = layer(rank)
    if transposed:  # rows are then apart in memory
        matrix = matrix.T.contiguous().T
    actual = decompose(matrix, 3, seeded(0))
    assert decompositions() == [True]
    exact = torch.linalg.svdvals(matrix.double())[:rank]
    positive = actual.coefficients[actual.coefficients > 0].flip(0)
    rounding = ROUNDING * float(matrix.norm())
    torch.testing.assert_close(positive[:rank], exact, rtol=1e-6, atol=rounding)
    vectors = actual.vectors(torch.arange(len(actual.coefficients))).double()
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(len(vectors)).double())
    wide = matrix.double()
    atoms = wide @ vectors.T
    sizes = atoms.norm(dim=0)
    torch.testing.assert_close(sizes[-rank:], actual.coefficients[-rank:], rtol=1e-5, atol=1e-5)
    assert float((wide - atoms @ vectors).norm()) <= rounding


def planted(size: float) -> Tensor:
    """Returns a matrix of rank 20 plus one entry that the sample of rows and columns misses."""
    matrix = layer(20)
    matrix[6, 1] += size * float(matrix.norm())
    return matrix


@pytest.mark.parametrize(
    ("matrix", "low"),
    [
        (normal(700, 300), False),
        (layer(MOST_RANK + 40), False),
        (layer(20) + 1e-4 * normal(700, 300, seed=3), False),
        (layer(20) * (1 + 1e-7 * normal(700, 300, seed=3)), True),
        (torch.block_diag(layer(20, 350, 150), normal(350, 150)), False),
        (normal(110, 100), False),
    ],
    ids=["full", "beyond the most", "noise", "rounding", "half of it", "few columns"],
)
def test_what_is_not_of_low_rank_is_told(matrix, low):
    assert (decompose_low_rank(matrix, seeded(0)) is not None) == low


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 3e-5])
def test_what_the_sample_does_not_see_the_combinations_do(size):
    """Checks that the spare combinations include the entry, or that the last of them notices it."""
    matrix = planted(size)
    result = decompose_low_rank(matrix, seeded(0))
    if result is not None:
        _, basis = result
        wide = matrix.double()
        assert float((wide - wide @ basis @ basis.T).norm()) <= ROUNDING * float(wide.norm())


def test_many_hidden_directions_are_noticed():
    matrix = layer(20)
    unseen = torch.arange(1, 299, 2)  # the sample takes every second column
    matrix[5::10, unseen] += normal(70, len(unseen), seed=5) * 1e-3
    assert decompose_low_rank(matrix, seeded(0)) is None


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30])
def test_any_size_of_its_entries_will_do(size, decompositions):
    matrix = layer(5).double().mul(size).float()
    codec = make_codec("svd(rank=5)")
    decoded = codec.decode(codec.encode(matrix, seeded(0)), matrix.shape)
    lost = float((decoded.double() - matrix.double()).norm() / matrix.double().norm())
    assert lost < (0.2 if size < 1e-38 else 1e-5)
    assert decompositions() == [True] or size < 1e-38


@pytest.mark.long
def test_a_layer_of_low_rank_is_unbiased_with_the_closed_form_variance(decompositions):
    matrix = layer(12, m=140, n=120, faintest=0.5)  # so that each atom is drawn often
    codec, draws = make_codec("svd(rank=3)"), 1500
    total, square = torch.zeros(140, 120).double(), torch.zeros(140, 120).double()
    error = 0.0
    codec.decode(codec.encode(matrix, seeded(0)), matrix.shape)
    with unchecked():
        for seed in range(draws):
            decoded_once = codec.decode(codec.encode(matrix, seeded(seed)), matrix.shape).double()
            total, square = total + decoded_once, square + decoded_once.square()
            error += float((decoded_once - matrix).square().sum()) / draws
    assert all(decompositions())
    mean = total / draws
    spread = ((square / draws - mean.square()).clamp(min=0) / draws).sqrt()
    assert ((mean - matrix).abs() <= 5.5 * spread + 1e-5).all()
    sizes = torch.linalg.svdvals(matrix.double())[:12]
    chances = least_variance_chances(sizes, 3.0)
    assert error == pytest.approx(float((sizes.square() * (1 / chances - 1)).sum()), rel=0.05)


def least_variance_chances(sizes: Tensor, budget: float) -> Tensor:
    """Probabilities in proportion to the sizes, at most 1, that add up to the budget."""
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        if float((sizes * middle).clamp(max=1).sum()) < budget:
            low = middle
        else:
            high = middle
    return (sizes * low).clamp(max=1)


@pytest.mark.parametrize("shape", [(400, 300), (300, 400)])
def test_the_largest_atoms_of_what_a_memory_adds_up_are_found_without_the_whole_spectrum(
    shape, monkeypatch
):
    """Checks a residual, whose rank is too high for `decompose_low_rank`.

    The whole spectrum took many times as long.
    """
    gradient = sum(layer(32, *shape) * weight for weight in (1.0, 0.5)) + normal(*shape, seed=3)
    sizes = torch.linalg.svdvals(gradient)
    monkeypatch.setattr(
        spectrum, "decompose_low_rank", lambda *_: pytest.fail("the whole spectrum")
    )
    monkeypatch.setattr(spectrum, "exact", lambda *_: pytest.fail("the whole spectrum"))
    codec = make_codec("svd(rank=4, selection=top)")
    sent = codec.decode(codec.encode(gradient, seeded(0)), gradient.shape)
    missed = float((gradient - sent).norm())
    assert missed == pytest.approx(float(sizes[4:].norm()), rel=1e-3)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_largest_atoms_are_found_at_any_scale(scale):
    gradient = layer(20, 250, 150) + 1e-3 * normal(250, 150)
    codec = make_codec("svd(rank=2, selection=top)")
    sent = codec.decode(codec.encode(scale * gradient, seeded(0)), gradient.shape) / scale
    expected = torch.linalg.svdvals(gradient)[2:].norm()
    assert float((gradient - sent).norm()) == pytest.approx(float(expected), rel=1e-3)


def test_the_largest_atoms_of_zeros_and_of_no_number():
    codec, nothing = make_codec("svd(selection=top)"), torch.zeros(150, 120)
    assert not codec.decode(codec.encode(nothing, seeded(0)), nothing.shape).any()
    with pytest.raises(CodecError, match="NaN or infinity"):
        codec.encode(nothing.clone().fill_(float("nan")), seeded(0))
