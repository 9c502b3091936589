"""LSS and SketchML, compared with plain loops written from the papers, and their error bounds."""

import math
import random
from bisect import bisect_right

import pytest
import torch
from support.backends import backends
from support.draws import normal, roundtrip, seeded
from torch import Tensor

from atomo.codecs.sketches import lss_model, sketchml
from atomo.codecs.sketches.lss import LSS
from atomo.codecs.sketches.sketchml import SketchML
from atomo.errors import CodecError, ConfigError
from atomo.kernels import clusters, quantiles

SIZES = [1, 2, 511, 1024, 1025, 1536, 3001, 9000]


def heavy(n: int, seed: int = 1) -> Tensor:
    """Entries with long tails on both sides."""
    return normal(n, seed=seed) * normal(n, seed=seed + 1).exp()


# The hash of the frames: they must decode to the same values on every machine.
def hash_by_hand(index: int, key: int) -> int:
    x = (index * 0x9E3779B9 & 0xFFFFFFFF) ^ key
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    return x ^ x >> 15


def test_the_hash_never_changes():
    assert [hash_by_hand(i, 7) for i in (0, 1, 12345)] == [2137950951, 3834108185, 3185069600]


@pytest.mark.parametrize("n", SIZES)
def test_all_ways_put_every_entry_where_a_plain_loop_does(n):
    values = heavy(n)
    thresholds = torch.tensor([-math.inf] * 4 + [-1.0, -0.5, -0.1, 0.0, 0.2, 0.9] + [math.inf] * 5)
    sizes = torch.tensor([1 + i % 5 for i in range(16)])
    both_backends = backends("clusters")
    packed = clusters.assign(values, thresholds)
    assert all(backend.assign(values, thresholds).equal(packed) for backend in both_backends)
    ids = [bisect_right(thresholds.tolist(), value) for value in values.tolist()]
    starts = (sizes.cumsum(0) - sizes).tolist()
    key = 0x12345678
    buckets = [starts[c] + (hash_by_hand(i, key) * int(sizes[c]) >> 32) for i, c in enumerate(ids)]
    members: dict[int, list[float]] = {}
    for bucket, value in zip(buckets, values.tolist(), strict=True):
        members.setdefault(bucket, []).append(value)
    expected = torch.tensor(
        [math.fsum(m) / len(m) if (m := members.get(b)) else 0.0 for b in range(int(sizes.sum()))]
    )
    seed = key | 5 << 32  # the hash has the low word alone
    for backend in both_backends:
        means = backend.mean_of_buckets(values, packed, sizes, seed)
        torch.testing.assert_close(means, expected)
        out = normal(n, seed=9)
        target = out + 0.5 * expected[buckets]
        backend.add_means(packed, sizes, seed, expected, out, 0.5)
        torch.testing.assert_close(out, target)


def test_lss_keeps_the_sum_of_each_bucket_and_mixes_no_signs():
    gradient = heavy(20_000)
    decoded = roundtrip(LSS(), gradient)
    torch.testing.assert_close(
        decoded.double().sum(), gradient.double().sum(), rtol=1e-4, atol=1e-2
    )
    assert ((decoded >= 0) == (gradient >= 0)).all()
    # A projection: the error is orthogonal to the result.
    lost = gradient.double() - decoded.double()
    assert abs(float(lost @ decoded.double())) < 1e-4 * float(gradient.double().square().sum())


def test_an_entry_goes_to_the_nearest_centre_of_its_sign():
    gradient = heavy(5000)
    model = lss_model.train_clusters(gradient, 8, seeded())
    ids = torch.bucketize(gradient, model.thresholds, right=True)
    for value, cluster in zip(gradient.tolist()[:500], ids.tolist()[:500], strict=True):
        same = [c for c in model.centres.tolist() if c * value > 0]
        assert float(model.centres[cluster]) == pytest.approx(
            min(same, key=lambda c: abs(c - value)), rel=1e-6
        )


def test_centres_are_those_of_a_plain_k_means():
    """Runs Lloyd's algorithm by hand from the same centres, with one centre for the outliers."""
    magnitudes = heavy(3000).abs().sort().values
    usual = magnitudes[: math.ceil(0.95 * 3000)].double()
    current = lss_model.plus_plus(usual, 4, seeded()).tolist()
    for _ in range(lss_model.PASSES):
        near: list[list[float]] = [[] for _ in current]
        for value in usual.tolist():
            near[min(range(4), key=lambda c: abs(current[c] - value))].append(value)
        current = [sum(n) / len(n) if n else c for n, c in zip(near, current, strict=True)]
    expected = [*current, float(magnitudes[len(usual) :].double().mean())]
    centres = lss_model.centres(magnitudes, 5, seeded())
    torch.testing.assert_close(
        centres, torch.tensor(expected, dtype=torch.float32), rtol=1e-3, atol=0
    )


@pytest.mark.slow
def test_k_means_plus_plus_draws_by_squared_distance():
    values = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    pairs = [tuple(lss_model.plus_plus(values, 2, seeded(s)).tolist()) for s in range(3000)]
    # First centre at random; then by squares: from 0 it is 1:9, from 1 it is 1:4, from 3 it is 9:4.
    chances = {(0.0, 1.0): (0.1 + 0.2) / 3, (0.0, 3.0): (0.9 + 9 / 13) / 3}
    for pair, chance in chances.items():
        count = pairs.count(pair)
        assert abs(count - 3000 * chance) < 5 * math.sqrt(3000 * chance * (1 - chance))


@pytest.mark.parametrize("share", ["entropy", "centre", "density"])
def test_buckets_are_shared_as_the_setting_says(share):
    model = lss_model.train_clusters(heavy(20_000), 4, seeded())
    sizes = lss_model.share_buckets(model, 1000, share).tolist()
    weights = model.entropies.double()
    weights *= 1 if share == "entropy" else model.centres.double().abs()
    weights *= model.shares.double() if share == "density" else 1
    for size, weight in zip(sizes, (1000 * weights / weights.sum()).tolist(), strict=True):
        assert size == max(1, int(weight))
    assert 1000 - 16 <= sum(sizes) <= 1016


def test_one_side_and_equal_entries_need_no_clusters():
    for gradient in (normal(300).abs(), -normal(300).abs(), torch.full((300,), -2.5)):
        decoded = roundtrip(LSS(), gradient)
        assert decoded.sign().equal(gradient.sign())
    assert roundtrip(LSS(), torch.full((300,), -2.5)).equal(torch.full((300,), -2.5))


class MinMaxSketch:
    """The sketch of the paper, a cell at a time."""

    def __init__(self, groups: list[int], share: float, keys: list[int]) -> None:
        self.groups, self.keys = groups, keys
        self.widths = {g: math.ceil(groups.count(g) * share) for g in set(groups)}
        self.cells: dict[tuple[int, int, int], int] = {}

    def places(self, i: int) -> list[tuple[int, int, int]]:
        group = self.groups[i]
        width = self.widths[group]
        return [(group, r, hash_by_hand(i, key) * width >> 32) for r, key in enumerate(self.keys)]

    def insert(self, i: int, number: int) -> None:
        for place in self.places(i):
            self.cells[place] = min(self.cells.get(place, 255), number)

    def query(self, i: int) -> int:
        return max(self.cells[place] for place in self.places(i))


@pytest.mark.parametrize("n", [1, 2, 700, 1025, 5001])
@pytest.mark.parametrize("share", [0.2, 1.0, 4.0])
def test_the_sketch_is_that_of_the_paper(n, share):
    values, seed = heavy(n), 0x1234_0000_5678
    table, _ = sketchml.train_buckets(values)
    halves = (values.view(torch.int32).long() & 0xFFFFFFFF) >> 16
    codes = table.view(torch.int16).long()[halves] & 0xFFFF
    groups, numbers = (codes >> 8).tolist(), (codes & 255).tolist()
    reference = MinMaxSketch(groups, share, [seed & 0xFFFFFFFF, seed >> 32])
    for i, number in enumerate(numbers):
        reference.insert(i, number)
    # Each bucket decodes to its own number, which shows the bucket that was read.
    means = torch.arange(quantiles.SKETCH_BUCKETS, dtype=torch.float32)
    residual, out = torch.zeros(n), torch.zeros(n)
    packed, cells = quantiles.sketch(values, table, share, seed, means, residual)
    assert len(cells) == 2 * sum(reference.widths.values())
    quantiles.add_sketched(packed, cells, share, seed, means, out, 1.0)
    assert out.tolist() == [32 * groups[i] + reference.query(i) for i in range(n)]
    assert residual.equal(-out)
    assert all(reference.query(i) <= numbers[i] for i in range(n))


def test_a_block_may_have_as_many_cells_as_there_can_be():
    """Puts one entry in its own group behind 32,768 cells to a row: 16 bits just hold that."""
    table = torch.zeros(quantiles.HALVES, dtype=torch.int16)
    table[0x4000:0x8000] = 15 * 256 + 7  # magnitudes from 2 on
    values = torch.ones(8192)
    values[5000] = 3.0
    means = torch.arange(quantiles.SKETCH_BUCKETS, dtype=torch.float32)
    packed, cells = quantiles.sketch(values, table, 4.0, 1, means)
    assert len(cells) == 2 * (4 * 8191 + 4)
    out = torch.zeros(8192)
    quantiles.add_sketched(packed, cells, 4.0, 1, means, out, 1.0)
    assert float(out[5000]) == 15 * 32 + 7
    assert int(out.count_nonzero()) == 1


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_extremes_are_those_of_the_magnitudes(n):
    values = heavy(n)
    halves = (values.abs().view(torch.int32) >> 16).tolist()
    assert quantiles.extremes(values) == (min(halves), max(halves))
    values[n // 2] = math.nan
    assert quantiles.extremes(values)[1] > 0x7F80
    values[n // 2] = -math.inf
    assert quantiles.extremes(values)[1] == 0x7F80
    values[n // 2] = -0.0
    assert quantiles.extremes(values)[0] == 0


def test_sketchml_turns_no_sign_and_reads_nothing_above_its_bucket():
    gradient = heavy(50_000)
    decoded = roundtrip(SketchML(), gradient)
    assert decoded.sign().equal(gradient.sign())
    table, means = sketchml.train_buckets(gradient)
    halves = (gradient.view(torch.int32).long() & 0xFFFFFFFF) >> 16
    numbers = table.long()[halves]
    own = means[(numbers >> 8) * 32 + (numbers & 255)]
    assert (decoded.abs() <= own.abs()).all()
    assert ((decoded - gradient).abs() <= gradient.abs() * (1 + 1e-6)).all()
    # With a cell of its own for nearly every entry nothing is smaller than it should be.
    wide = roundtrip(SketchML(cells=4.0), gradient)
    assert float((wide == own).float().mean()) > 0.9


def test_quantile_buckets_are_about_equally_full():
    gradient = normal(400_000)
    table, _ = sketchml.train_buckets(gradient)
    halves = (gradient.view(torch.int32).long() & 0xFFFFFFFF) >> 16
    numbers = table.long()[halves]
    full = torch.bincount((numbers >> 8) * 32 + (numbers & 255), minlength=quantiles.SKETCH_BUCKETS)
    # Ends are rounded to 2^-7, which is a few buckets where the entries are dense.
    assert int(full.max()) < 12 * 400_000 // quantiles.SKETCH_BUCKETS
    groups = full.view(16, 32).sum(1)
    assert int(groups.min()) > 0.8 * 400_000 / 16
    assert int(groups.max()) < 1.2 * 400_000 / 16


@pytest.mark.parametrize("zeros", [0.0, 0.01, 0.4, 0.6, 0.99, 1.0])
def test_zeros_cost_their_places_and_stay_zeros(zeros):
    chance = random.Random(3)
    gradient = heavy(6000)
    gradient[[chance.random() < zeros for _ in range(6000)]] = 0
    payload = SketchML().encode(gradient, seeded())
    decoded = SketchML().decode(payload, gradient.shape)
    assert (decoded != 0).equal(gradient != 0)
    assert int(payload.head[0]) == int(gradient.count_nonzero())
    if zeros in (0.01, 0.99):
        assert len(payload.places) < 80


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LSS(clusters=1), r"clusters must be in 2\.\.8, got 1"),
        (lambda: LSS(buckets=0), r"buckets must be in"),
        (lambda: LSS(share="size"), r"share must be one of entropy, centre, density; got 'size'"),
        (lambda: SketchML(cells=0.0), r"cells must be above 0"),
        (lambda: SketchML(cells=math.nan), r"cells must be above 0 and at most 4, got nan"),
    ],
)
def test_a_setting_out_of_range_is_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("codec", [LSS(), SketchML()], ids=str)
def test_strange_payloads_are_refused_and_leave_the_sum_unchanged(codec):
    payload, out = codec.encode(heavy(3000), seeded()), torch.zeros(3000)
    sections = codec.sections(payload)
    for number, section in enumerate(sections):
        for strange in (section[:0], torch.full_like(section, -1), torch.cat([section, section])):
            changed = [*sections]
            changed[number] = strange
            if number == 0 and len(strange) == len(section) and isinstance(codec, LSS):
                continue  # any seed is a seed
            if strange.is_floating_point() and len(strange) == len(section):
                continue  # any means are means
            if strange.equal(section):
                continue  # there was nothing in it
            with pytest.raises(CodecError, match=codec.id):
                codec.add_decoded(codec.assemble(iter(changed)), out)
            assert not out.any()
