"""Selection in all backends, against sorting."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import Backend, backends, every_backend
from support.draws import normal

from atomo.kernels import draws
from atomo.kernels import selection as select
from atomo.kernels.selection import sampled

each_backend = every_backend("selection", interpreted=False)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@each_backend
@pytest.mark.parametrize("n", [1, 31, 32, 33, 2048, 2049, 50_000])
@pytest.mark.parametrize("value", [1e-9, 0.5, 2.5, 9.0])
def test_above_adds_finds_and_clears(backend: Backend, n, value):
    values, added = normal(n), normal(n, seed=2)
    total = values + added
    indices, chosen = backend.above(values, added, select.bits_of(value), True)
    expected = (total.abs() >= value).nonzero().squeeze(1)
    assert indices.equal(expected)
    assert chosen.equal(total[expected])
    total[expected] = 0
    assert values.equal(total)


@each_backend
def test_above_only_looks_where_nothing_is_to_be_added(backend: Backend):
    values = normal(5000)
    before = values.clone()
    indices, _ = backend.above(values, None, select.bits_of(1.0), False)
    assert values.equal(before)
    assert indices.equal((before.abs() >= 1).nonzero().squeeze(1))


def test_bits_of_is_the_first_magnitude_that_is_not_below():
    for value in (0.1, 1e-46, 1.0, 3e38, 0.001):
        bits = np.array([select.bits_of(value)], np.int32)
        assert float(bits.view(np.float32)[0]) >= value
        assert float((bits - 1).view(np.float32)[0]) < value or bits[0] == 1
    assert select.bits_of(1e39) == select.INFINITY


@each_backend
@settings(max_examples=100, deadline=None, derandomize=True)
@given(values=st.lists(floats, min_size=1, max_size=50), data=st.data())
def test_kth_largest(backend: Backend, values, data):
    entries = torch.tensor(values)
    k = data.draw(st.integers(1, len(values)))
    bits, higher = backend.kth_largest(entries.view(torch.int32), k)
    ordered = entries.abs().sort(descending=True).values
    assert bits == int(ordered.view(torch.int32)[k - 1])
    assert higher == int((ordered > ordered[k - 1]).sum())


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-42]), min_size=1), k=st.data()
)
def test_of_equal_entries_the_first_are_the_largest(values, k):
    entries = torch.tensor(values)
    count = k.draw(st.integers(1, len(values)))
    indices, chosen = select.largest(entries, None, count)
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    assert indices.tolist() == sorted(i for i in order[:count] if values[i])
    assert chosen.equal(entries[indices])


@pytest.mark.parametrize("k", [1, 40, 4000, 400_000])
@pytest.mark.parametrize("kind", ["normal", "sorted", "equal", "rare", "one loud layer"])
def test_the_largest_of_many(kind, k):
    n = 400_000
    values = {
        "normal": normal(n),
        "sorted": normal(n).sort().values,
        "equal": torch.ones(n),
        "rare": torch.zeros(n).index_fill_(0, torch.arange(0, n, 977), 1.0),
        "one loud layer": torch.cat([normal(n - 3000), 1e6 * normal(3000)]),
    }[kind]
    expected = values.abs().sort(descending=True, stable=True).indices[:k]
    expected = expected[values[expected] != 0].sort().values
    residual = torch.zeros(n)
    indices, chosen = select.largest(residual, values.clone(), k)
    assert indices.equal(expected)
    assert chosen.equal(values[expected])
    assert residual.equal(values)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_found(bad):
    values = normal(3000)
    values[2345] = bad
    for find in (lambda: select.largest(values, None, 5), lambda: select.check_finite(values)):
        with pytest.raises(ValueError, match="NaN"):
            find()


@each_backend
@pytest.mark.parametrize("n", [1, 7, 64, 65, 1000])
def test_chunk_sums(backend: Backend, n):
    values, added = normal(n), normal(n, seed=2)
    total = values + added
    sums = backend.chunk_sums(values, added, 64)
    expected = torch.stack([part.double().abs().sum() for part in total.split(64)])
    torch.testing.assert_close(sums, expected)
    assert values.equal(total)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000])
def test_drawn_indices_are_distinct_and_the_same_in_all_backends(n):
    seed = 12345
    whole = draws.draw(seed, n, n, torch.device("cpu"))
    assert whole.sort().values.equal(torch.arange(n))
    for backend in backends("draws"):
        assert backend.draw(seed, n, n, torch.device(backend.device)).equal(whole)


@pytest.mark.slow
def test_drawn_indices_are_uniform():
    counts = torch.zeros(11)
    for seed in range(11_000):
        counts[draws.draw(seed << 16, 2, 11, torch.device("cpu"))] += 1
    expected = 2000.0
    assert float(((counts - expected).square() / expected).sum()) < 30  # chi-squared, 10 degrees


def test_survivors_of_a_table_of_four_slots_each():
    k, slots = 50_000, 200_000
    survivors = draws.survivors(torch.arange(k) * 37, 99, slots)
    assert abs(float(survivors.float().mean()) - slots * (1 - (1 - 1 / slots) ** k) / k) < 0.003
    for backend in backends("draws", interpreted=False):
        assert backend.survivors(torch.arange(k) * 37, 99, slots).equal(survivors)
    assert not survivors.equal(draws.survivors(torch.arange(k) * 37, 100, slots))


@every_backend("selection")
@pytest.mark.parametrize("k", [40, pytest.param(2999, marks=pytest.mark.slow)])
def test_each_backend_finds_the_same(backend: Backend, k, monkeypatch):
    """Selects from more than one block: of equal entries the first, with few samples of many."""
    monkeypatch.setattr(sampled, "SAMPLES", 1024)
    values, added = normal(5003).round(decimals=1), normal(5003, seed=2).round(decimals=1)
    values[[7, 4000]] = 9.0  # the sum of one of them is the largest
    total = values + added
    expected = total.abs().sort(descending=True, stable=True).indices[:k].sort().values
    indices, chosen = backend.largest(values, added, k)
    assert values.equal(total)
    assert indices.equal(expected)
    assert chosen.equal(total[expected])


@every_backend("selection")
def test_each_backend_sums_and_looks_up_the_same(backend: Backend):
    values, added = normal(4099), normal(4099, seed=2)
    total, positions = values + added, torch.arange(3, 4099, 2)
    assert backend.magnitudes(values, added, positions).equal(
        total[positions].abs().view(torch.int32)
    )
    assert backend.largest_bits(total) == int(total.abs().max().view(torch.int32))
    sums = backend.chunk_sums(values, added, 2050)
    assert values.equal(total)
    expected = [part.double().abs().sum() for part in total.split(2050)]
    torch.testing.assert_close(sums, torch.stack(expected))
    indices, chosen = backend.above(values, None, select.bits_of(1.5), True)
    assert indices.equal((total.abs() >= 1.5).nonzero().squeeze(1))
    assert chosen.equal(total[indices])
    assert values.equal(torch.where(total.abs() >= 1.5, 0.0, total))


@every_backend("selection")
@pytest.mark.parametrize("bad", [float("nan")])
def test_each_backend_finds_what_is_not_finite(backend: Backend, bad):
    values = normal(2100)
    values[2049] = bad
    with pytest.raises(ValueError, match="NaN"):
        backend.largest(values, None, 5)


@every_backend("selection")
def test_sets_are_added_one_after_the_other(backend: Backend):
    """Compares bytes: sums of floats depend on their order."""
    n, sizes = 9000, (0, 300, 1, 2500)
    sets = [normal(n, seed=s).topk(size).indices.sort().values for s, size in enumerate(sizes)]
    sets[2] = torch.tensor([8191])
    indices, values = torch.cat(sets), normal(sum(sizes), seed=5)
    out, expected = normal(n), normal(n)
    for index, value in zip(indices.tolist(), values, strict=True):
        expected[index] += torch.tensor(0.1) * value
    backend.add_sets(out, indices, values, sizes, 0.1)
    assert out.equal(expected)


@every_backend("draws")
def test_each_backend_lets_the_same_survive(backend: Backend):
    indices, seed = torch.arange(1500) * 37, 2**63 - 1
    survivors = Backend("draws", "cpu").survivors(indices, seed, 700)
    assert backend.survivors(indices, seed, 700).equal(survivors)
