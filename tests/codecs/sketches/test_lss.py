"""LSS as a receiver sees it: bucket means a dictionary at a time, and bytes from anyone."""

import math
from collections import defaultdict

import pytest
import torch
from support.draws import seeded
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.codecs.sketches import lss, lss_model
from atomo.errors import CodecError
from atomo.kernels import clusters, entropy

MASK = 2**32 - 1


def heavy(count: int, seed: int = 1) -> Tensor:
    """Returns values like those of gradients: mostly small, a few large."""
    return torch.randn(count, generator=seeded(seed)).pow(3) * 1e-3


def hashed(index: int, seed: int, size: int) -> int:
    """Computes the bucket of an entry in its cluster, in Python's integers."""
    x = index * 0x9E3779B9 & MASK ^ seed & MASK
    x = (x ^ x >> 16) * 0x7FEB352D & MASK
    return (x ^ x >> 15) * size >> 32


def ids_of(packed: Tensor, entries: int) -> list[int]:
    """Unpacks the clusters of a message, tile by tile."""
    ids: list[int] = []
    for start in range(0, entries, 1024):
        half = (min(1024, entries - start) + 1) // 2
        part = packed[start // 2 : start // 2 + half].tolist()
        ids += ([b & 15 for b in part] + [b >> 4 for b in part])[: min(1024, entries - start)]
    return ids


def places(payload: lss.Means, entries: int) -> list[tuple[int, int]]:
    """Computes cluster and bucket of each entry, as a receiver does."""
    packed = entropy.decompress(payload.words, clusters.packed_bytes(entries))
    seed, sizes = int(payload.seed), payload.sizes.tolist()
    return [(c, hashed(i, seed, sizes[c])) for i, c in enumerate(ids_of(packed, entries))]


def slow_decode(gradient: Tensor, buckets: list[tuple[int, int]]) -> Tensor:
    """Computes the mean of the entries that share a place."""
    entries = defaultdict(list)
    for place, value in zip(buckets, gradient.tolist(), strict=True):
        entries[place].append(value)
    return torch.tensor([math.fsum(entries[place]) / len(entries[place]) for place in buckets])


@pytest.mark.parametrize("count", [1, 2, 3, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("share", ["entropy", "centre", "density"])
def test_every_entry_becomes_the_mean_of_its_bucket(count, share):
    gradient, codec = heavy(count), make_codec(f"lss(buckets=60, share={share})")
    payload = codec.encode(gradient, seeded(2))
    expected = slow_decode(gradient, places(payload, count))
    decoded = codec.decode(payload, gradient.shape)
    torch.testing.assert_close(decoded, expected, rtol=1e-5, atol=1e-12)


def least_squares(values: list[float], count: int) -> float:
    """Computes the least within-cluster sum of squares on a line by dynamic programming over the
    cuts."""
    n = len(values)
    sums, squares = [0.0], [0.0]
    for value in values:
        sums.append(sums[-1] + value)
        squares.append(squares[-1] + value * value)

    def cost(i: int, j: int) -> float:
        return squares[j] - squares[i] - (sums[j] - sums[i]) ** 2 / (j - i)

    best = [0.0] + [math.inf] * n
    for _ in range(count):
        best = [0.0] + [
            min(best[i] + cost(i, j) for i in range(j) if best[i] < math.inf)
            for j in range(1, n + 1)
        ]
    return best[n]


def test_centres_are_close_to_the_best_there_are_and_outliers_have_their_own():
    magnitudes = heavy(240).abs().sort().values
    usual = math.ceil(0.95 * 240)
    best = least_squares(magnitudes[:usual].double().tolist(), 4)
    ratios = []
    for seed in range(5):
        centres = lss_model.centres(magnitudes, 5, seeded(seed))
        assert centres.diff().gt(0).all()
        torch.testing.assert_close(centres[-1], magnitudes[usual:].mean())
        inner = magnitudes[:usual, None].double() - centres[:-1].double()
        nearest = inner.abs().argmin(1)  # k-means: each centre is the mean of the nearest values
        own = [magnitudes[:usual][nearest == c].mean() for c in range(len(centres) - 1)]
        torch.testing.assert_close(centres[:-1], torch.stack(own), rtol=0.02, atol=0)
        ratios.append(float(inner.square().min(1).values.sum()) / best)
    assert min(ratios) >= 1 - 1e-9
    assert sorted(ratios)[2] <= 1.5


def test_more_buckets_and_more_clusters_mean_less_error():
    gradient = heavy(50_000)

    def error(spec: str) -> float:
        codec = make_codec(spec)
        decoded = codec.decode(codec.encode(gradient, seeded(0)), gradient.shape)
        return float((gradient - decoded).norm() / gradient.norm())

    coarse, fine = error("lss(clusters=2, buckets=64)"), error("lss(clusters=8, buckets=4096)")
    assert fine < 0.7 * coarse


def test_a_frame_is_read_without_the_sender_s_settings():
    gradient = heavy(3000)
    payload = make_codec("lss(clusters=3, buckets=90, share=density)").encode(gradient, seeded(0))
    decoded = make_codec("lss").decode(payload, Size((3000,)))
    assert decoded.equal(make_codec("lss(buckets=9)").decode(payload, Size((3000,))))


def test_the_clusters_cost_about_their_entropy():
    gradient, codec = heavy(200_000), make_codec("lss")
    payload = codec.encode(gradient, seeded(0))
    packed = entropy.decompress(payload.words, clusters.packed_bytes(200_000))
    counts = torch.tensor(ids_of(packed, 200_000)).bincount().double()
    p = counts[counts > 0] / counts.sum()
    assert 32 * len(payload.words) / 200_000 <= 1.05 * float(-(p * p.log2()).sum())


@pytest.mark.parametrize("moved", [1, 2, 1000])
def test_a_cluster_without_buckets_is_refused_though_the_sum_is_right(moved):
    codec = make_codec("lss")
    payload = codec.encode(heavy(500), seeded(0))
    used, next_cluster = 8, 9  # the entries just above zero
    payload.sizes[next_cluster] += payload.sizes[used] + moved - 1
    payload.sizes[used] = 1 - moved
    total = torch.ones(500)
    with pytest.raises(CodecError, match="lss"):
        codec.add_decoded(payload, total)
    assert total.equal(torch.ones(500))
