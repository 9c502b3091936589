"""Index sets as bytes: exact, near the bound, and safe from strangers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import Backend, every_backend
from support.draws import normal
from torch import Tensor

from atomo.kernels import rice


def bound_bits(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def reference(data: bytes, count: int) -> list[int]:
    """Encodes as the docstring of the format says, a bit at a time."""
    bits = iter([byte >> place & 1 for byte in data for place in range(8)])

    def take(width: int) -> int:
        return sum(next(bits) << place for place in range(width))

    indices, last, r = [], -1, 0
    for number in range(count):
        if number % 512 == 0:
            r = take(5)
        zeros = 0
        while not next(bits):
            zeros += 1
        gap = take(48) if zeros == 24 else zeros << r | take(r)
        last += gap + 1
        indices.append(last)
    return indices


def uniform(n: int, k: int) -> Tensor:
    return torch.from_numpy(np.sort(np.random.default_rng(0).choice(n, k, replace=False)))


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_uniform_sets_cost_at_most_3_per_cent_more_than_the_bound(density):
    n = 1_000_000
    k = int(n * density)
    indices = uniform(n, k)
    data = rice.encode(indices, n)
    assert 8 * len(data) <= 1.03 * bound_bits(n, k)
    assert rice.decode(data, k, n).equal(indices)
    assert reference(data.numpy().tobytes(), k) == indices.tolist()


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 2**40), max_size=1200))
def test_any_set_comes_back_within_its_bound(chosen):
    indices = torch.tensor(sorted(chosen), dtype=torch.int64)
    n = 2**40 + 1
    data = rice.encode(indices, n)
    assert len(data) <= rice.most_bytes(n, len(indices))
    assert rice.decode(data, len(indices), n).equal(indices)
    assert reference(data.numpy().tobytes(), len(indices)) == indices.tolist()


def test_clusters_stay_within_the_bound():
    # One huge gap in a block of small ones, and the reverse.
    parts = [torch.arange(300), torch.tensor([2**47]), torch.arange(2**47 + 5, 2**47 + 900)]
    indices = torch.cat(parts)
    data = rice.encode(indices, 2**48)
    assert rice.decode(data, len(indices), 2**48).equal(indices)
    assert len(data) <= rice.most_bytes(2**48, len(indices))


def test_all_of_them_cost_about_a_bit_each():
    assert len(rice.encode(torch.arange(8000), 8000)) <= 1012


@pytest.mark.slow
@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.binary(max_size=60), st.integers(-1, 600), st.integers(1, 5000))
def test_strange_bytes_give_increasing_indices_or_an_error(data, count, n):
    raw = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    try:
        indices = rice.decode(raw, count, n)
    except ValueError:
        return
    assert len(indices) == count
    assert not count or (int(indices[0]) >= 0 and int(indices[-1]) < n)
    assert (indices.diff() > 0).all()


@pytest.mark.parametrize("change", ["shorter", "longer", "more", "fewer", "smaller"])
def test_what_does_not_fit_is_refused(change):
    indices = uniform(10_000, 700)
    data, count, n = rice.encode(indices, 10_000), 700, 10_000
    match change:
        case "shorter":
            data = data[:-1]
        case "longer":
            data = torch.cat([data, data[:2]])
        case "more":
            count += 20
        case "fewer":
            count -= 20
        case "smaller":
            n = int(indices[-1])
    with pytest.raises(ValueError, match=str(n)):
        rice.decode(data, count, n)


def test_several_sets_are_read_one_behind_the_other():
    sets = [uniform(10_000, count) for count in (700, 0, 1, 513, 3)]
    data = [rice.encode(indices, 10_000) for indices in sets]
    counts = [len(indices) for indices in sets]
    assert rice.decode_all(data, counts, 10_000).equal(torch.cat(sets))


def test_sets_are_read_in_their_places():
    sets = [uniform(10_000, count) for count in (700, 0, 513)]
    data = [rice.encode(indices, 10_000) for indices in sets]
    counts, places = [len(indices) for indices in sets], [range(5, 10_005), range(3), range(10_000)]
    expected = torch.cat([sets[0] + 5, sets[1], sets[2]])
    assert rice.decode_within(data, counts, places).equal(expected)
    for bad in (0, 2):
        last = places[bad].start + int(sets[bad][-1])
        short = [*places[:bad], range(places[bad].start, last), *places[bad + 1 :]]
        with pytest.raises(ValueError, match=f"{counts[bad]} indices below {len(short[bad])}"):
            rice.decode_within(data, counts, short)


@pytest.mark.parametrize("bad", range(3))
def test_the_bits_of_one_set_are_not_read_as_those_of_another(bad):
    indices = uniform(10_000, 700)
    data, counts = [rice.encode(indices, 10_000)] * 3, [700] * 3
    for change in (-20, -1, 1, 20):
        wrong = counts.copy()
        wrong[bad] += change
        with pytest.raises(ValueError, match="10000"):
            rice.decode_all(data, wrong, 10_000)
    cut = [*data[:bad], data[bad][:-1], *data[bad + 1 :]]
    with pytest.raises(ValueError, match="10000"):
        rice.decode_all(cut, counts, 10_000)


@every_backend("rice")
def test_each_backend_packs_the_same_bytes(backend):
    """Packs several blocks, with gaps that escape and with an end that fills no word."""
    near, far = torch.arange(600), torch.tensor([2**30, 2**40 + 7, 2**47])
    spread = normal(700, seed=5).abs().mul(1e6).long() + 600
    indices = torch.cat([near, spread, far]).unique()
    room = rice.most_bytes(2**48, len(indices))
    data = backend.pack(indices, room)
    assert data.equal(Backend("rice", "cpu").pack(indices, room))
    assert rice.decode(data, len(indices), 2**48).equal(indices)
    assert not len(backend.pack(indices[:0], 0))
