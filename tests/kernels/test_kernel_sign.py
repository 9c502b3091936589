"""One bit an entry: all backends, against the layout read one entry at a time."""

import pytest
import torch
from support.backends import every_backend
from support.draws import normal
from torch import Tensor

from atomo.kernels import sign

SIZES = [1, 31, 32, 33, 64, 2047, 2048, 2049, 5000]
each_backend = every_backend("sign")
every_size = pytest.mark.parametrize("n", SIZES)


def bits_by_hand(words: Tensor, n: int) -> list[int]:
    bits = []
    for start in range(0, n, 2048):
        size = min(2048, n - start)
        width = (size + 31) // 32
        for place in range(size):
            word = int(words[start // 32 + place % width])
            bits.append(word >> place // width & 1)
    return bits


@each_backend
@every_size
def test_each_entry_has_its_bit(backend, n):
    values = normal(n)
    values[0] = -0.0
    words, largest = backend.pack_signs(values)
    assert len(words) == sign.word_count(n) == -(-n // 32)
    assert bits_by_hand(words, n) == torch.signbit(values).int().tolist()
    assert largest == float(values.abs().max())


@pytest.mark.slow(cases=("cuda",))
@each_backend
def test_what_is_not_finite_is_told(backend):
    for value in (float("nan"), float("inf"), -float("inf")):
        values = normal(3000)
        values[2500] = value
        assert not backend.pack_signs(values)[1] < float("inf")
        _, positive, negative, _ = backend.add_pack_sum(values, None)
        assert not positive - negative < float("inf")


@each_backend
@every_size
def test_adding_packing_and_summing_at_once(backend, n):
    values, added = normal(n), normal(n, seed=2)
    total = values + added
    words, positive, negative, count = backend.add_pack_sum(values, added)
    assert values.equal(total)
    assert words.equal(sign.pack_signs(total)[0])
    assert positive == pytest.approx(float(total[total > 0].double().sum()), abs=1e-9)
    assert negative == pytest.approx(float(total[total < 0].double().sum()), abs=1e-9)
    assert count == int((total > 0).sum())


@each_backend
@every_size
def test_adding_signs(backend, n):
    values, out = normal(n), normal(n, seed=2)
    words, _ = sign.pack_signs(values)
    expected = out + torch.where(values < 0, -0.25, 0.5)
    backend.add_signs(words, 0.5, -0.25, out)
    torch.testing.assert_close(out, expected)


def test_too_few_words_are_refused():
    out = torch.zeros(65)
    with pytest.raises(ValueError, match="2 words"):
        sign.add_signs(torch.zeros(2, dtype=torch.int32), 1.0, -1.0, out)
    assert not out.any()


@pytest.mark.slow(cases=("1-", "64-", "7-"))
@each_backend
@every_size
@pytest.mark.parametrize("row", [1, 7, 64, 3000])
def test_two_means_for_each_run_of_entries(backend, n, row):
    values, added = normal(n), normal(n, seed=2)
    total = values + added
    words, means = backend.add_pack_means(values, added, row)
    assert words.equal(sign.pack_signs(total)[0])
    assert values.equal(total)
    expected = []
    for part in total.split(row):
        for chosen in (~torch.signbit(part), torch.signbit(part)):
            expected.append(float(part[chosen].double().mean()) if chosen.any() else 0.0)
    assert means.tolist() == pytest.approx(expected, rel=1e-6)
    out = normal(n, seed=3)
    target = out + 0.5 * torch.tensor(
        [expected[2 * (i // row) + int(torch.signbit(total[i]))] for i in range(n)]
    )
    backend.add_row_signs(words, means, row, 0.5, out)
    torch.testing.assert_close(out, target)
