"""The random words of the kernels: their definition, and their statistical quality."""

from itertools import combinations

import numpy as np
import pytest
import torch

from atomo.kernels.random_words import LANES, reference
from atomo.kernels.random_words.cpu import mix, random_words

LAST = 20  # words of a lane that are ever used


def xorshift(x: int) -> int:
    """Runs Marsaglia's generator with the shifts 13, 17, 5."""
    x ^= x << 13 & 0xFFFFFFFF
    x ^= x >> 17
    return x ^ x << 5 & 0xFFFFFFFF


def words_of(key: int) -> list[int]:
    words = np.empty(LAST * LANES, np.uint32)
    random_words(np.uint64(key), words)
    return words.tolist()


def test_each_lane_is_a_xorshift_from_a_hash():
    words = words_of(0x0123456789ABCDEF)
    assert words[LANES:] == [xorshift(x) for x in words[:-LANES]]
    assert len(set(words)) > len(words) - 3
    assert words[:LANES] != words_of(0x0123456789ABCDEE)[:LANES]


@pytest.mark.parametrize("key", [0, 1, 0x0123456789ABCDEF, 2**63 - 1])
def test_pytorch_makes_the_same_words(key):
    assert reference.random_words(torch.tensor([5, key]), LAST * LANES)[1].tolist() == words_of(key)
    mixed = int(reference.mix(torch.tensor([key]))) & 2**64 - 1
    assert mixed == int(mix(np.uint64(key)))


def rank(rows: list[int]) -> int:
    """Computes the rank of a matrix of bits, one number for each row."""
    rank = 0
    while rows:
        if row := rows.pop():
            rank += 1
            lowest = row & -row
            rows = [vector ^ row if vector & lowest else vector for vector in rows]
    return rank


@pytest.mark.parametrize(("steps", "bits"), [(2, 12), (3, 8)])
def test_the_upper_bits_of_any_words_of_a_lane_are_independent(steps, bits):
    """Checks that the map of a lane's first word to the upper bits of words is of full rank."""
    lanes = []
    for bit in range(32):
        lane = [1 << bit]
        while len(lane) < LAST:
            lane.append(xorshift(lane[-1]))
        lanes.append(lane)
    for chosen in combinations(range(LAST), steps):
        if chosen[-1] - chosen[0] > (LAST if steps == 2 else 2):
            continue  # threes: of neighbours
        rows = []
        for lane in lanes:
            row = 0
            for step in chosen:
                row = row << bits | lane[step] >> (32 - bits)
            rows.append(row)
        assert rank(rows) == steps * bits, chosen


def test_words_are_uniform():
    words = np.array([words_of(key) for key in range(400)], np.uint32)
    counts = np.bincount((words >> np.uint32(24)).ravel(), minlength=256)
    expected = words.size / 256
    # Chi-squared with 255 degrees of freedom: 5 standard deviations.
    assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 5 * (2 * 255) ** 0.5
