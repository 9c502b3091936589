"""PowerSGD and ACP-SGD over threads, compared with the papers' algorithms in one process."""

from collections.abc import Callable, Sequence

import pytest
import torch
from support.harness import together
from torch import Generator, Size, Tensor

from atomo.codecs import make_codec
from atomo.config.comm_types import REDUCTIONS
from atomo.errors import CheckpointError, CodecError, ConfigError
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.compressor import Compressor
from atomo.exchange.reductions.acpsgd import ACPSGD
from atomo.exchange.reductions.powersgd import PowerSGD
from atomo.exchange.reductions.warm_start import WarmStart
from atomo.fusion import Bucket, plan
from atomo.memory import make_memory
from atomo.options.grouping import ONE
from atomo.transports import network
from atomo.wire import Compression

BOTH = [PowerSGD, ACPSGD]
SHAPES = {
    "conv": Size([6, 3, 3, 2]),
    "one": Size([12, 10]),
    "bias": Size([12]),
    "two": Size([12, 10]),
    "three": Size([12, 10]),
    "tall": Size([40, 7]),
}
PATIENCE_S, SEED, RANKS = 600.0, 3, 3
Gradients = dict[str, Tensor]
Ways = Sequence[tuple[PowerSGD | ACPSGD, Compressor]]


def gradients(rank: int, step: int) -> Gradients:
    generator = Generator().manual_seed(100 * step + rank)
    scale = {name: 10.0**place for place, name in enumerate(SHAPES)}
    return {n: torch.randn(s, generator=generator) * scale[n] for n, s in SHAPES.items()}


def bucket_of(rank: int) -> Bucket:
    codec = PowerSGD.adapt_codec(make_codec(f"svd(rank={rank})"))
    (bucket,) = plan([*SHAPES.items()], codec, ONE)
    return bucket


def ways(kind: type[PowerSGD | ACPSGD], size: int = RANKS) -> Ways:
    """Returns a reduction and a compressor for each rank."""
    made = []
    for transport in network(size):
        memory = make_memory("residual", workers=size)
        compressor = Compressor(memory, Compression(), transport.rank + 1, SEED)
        made.append((kind(Direct(transport, PATIENCE_S), compressor), compressor))
    return made


def averaged(
    made: Ways, bucket: Bucket, step: int, given: Callable[[int, int], Gradients] = gradients
) -> Gradients:
    """Returns the mean of a step, which is the same on all ranks."""
    outs = [torch.zeros(bucket.size) for _ in made]

    def body(rank: int) -> None:
        flat, mine = torch.zeros(bucket.size), given(rank, step)
        for slot in bucket.slots:
            flat[slot.start : slot.stop] = mine[slot.name].flatten()
        encoded = made[rank][0].encode(bucket, flat, step)
        received = made[rank][0].exchange(bucket, encoded, step)
        made[rank][0].decode(bucket, received, step, outs[rank])

    together([lambda rank=rank: body(rank) for rank in range(len(made))])
    assert all(out.equal(outs[0]) for out in outs)
    return {s.name: outs[0][s.start : s.stop].view(s.shape).clone() for s in bucket.slots}


def orthonormal(columns: Tensor) -> Tensor:
    """Gram-Schmidt, as in the paper."""
    found: list[Tensor] = []
    for column in columns.T:
        rest = column.double()
        for _ in range(2):
            rest = rest - sum((one * (one @ rest) for one in found), torch.zeros(()))
        found.append(rest / rest.norm())
    return torch.stack(found, 1)


def drawn(name: str, rows: int, rank: int) -> Tensor:
    return WarmStart(SEED).factor(name, rows, rank, torch.device("cpu")).double()


class PowerReference:
    """Algorithms 1 and 2 of Vogels et al. for one matrix, all workers in one process."""

    def __init__(self, name: str, m: int, n: int, rank: int) -> None:
        self.q = drawn(f"q/{name}", n, rank)
        self.errors = [torch.zeros(m, n, dtype=torch.float64) for _ in range(RANKS)]

    def step(self, number: int, given: Sequence[Tensor]) -> Tensor:
        wholes = [g.double() + e for g, e in zip(given, self.errors, strict=True)]
        p = orthonormal(sum(one @ self.q for one in wholes) / RANKS)
        self.q = sum(one.T @ p for one in wholes) / RANKS
        self.errors = [one - p @ (one.T @ p).T for one in wholes]
        return p @ self.q.T


class AlternateReference:
    """ACP-SGD for one matrix."""

    def __init__(self, name: str, m: int, n: int, rank: int) -> None:
        self.q, self.p = drawn(f"q/{name}", n, rank), drawn(f"p/{name}", m, rank)
        self.errors = [torch.zeros(m, n, dtype=torch.float64) for _ in range(RANKS)]

    def step(self, number: int, given: Sequence[Tensor]) -> Tensor:
        wholes = [g.double() + e for g, e in zip(given, self.errors, strict=True)]
        if number % 2:
            self.q = orthonormal(self.q)
            mine = [one @ self.q for one in wholes]
            self.p = sum(mine) / RANKS
            self.errors = [one - p @ self.q.T for one, p in zip(wholes, mine, strict=True)]
        else:
            self.p = orthonormal(self.p)
            mine = [one.T @ self.p for one in wholes]
            self.q = sum(mine) / RANKS
            self.errors = [one - self.p @ q.T for one, q in zip(wholes, mine, strict=True)]
        return self.p @ self.q.T


REFERENCES = {PowerSGD: PowerReference, ACPSGD: AlternateReference}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_it_is_the_paper_s_algorithm(kind, rank):
    """Several layers of equal shape too, at rank 1 too, where public code scales them together."""
    made, bucket = ways(kind), bucket_of(rank)
    sides = {n: (s[0], s.numel() // s[0]) for n, s in SHAPES.items() if len(s) > 1}
    papers = {n: REFERENCES[kind](n, *side, rank) for n, side in sides.items()}
    for step in range(1, 6):
        means = averaged(made, bucket, step)
        given = [gradients(worker, step) for worker in range(RANKS)]
        dense = sum(one["bias"] for one in given) / RANKS
        torch.testing.assert_close(means["bias"], dense, rtol=1e-5, atol=1e-3)
        for name, paper in papers.items():
            matrices = [one[name].view(sides[name]) for one in given]
            expected = paper.step(step, matrices).float().view(SHAPES[name])
            error = float((means[name] - expected).norm() / expected.norm())
            assert error < 1e-4, (step, name, error)


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_sent_and_what_is_kept_are_what_came_in(kind):
    made, bucket = ways(kind), bucket_of(2)
    came = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    left = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(1, 6):
        means = averaged(made, bucket, step)
        for name in SHAPES:
            came[name] += sum(gradients(rank, step)[name] for rank in range(RANKS))
            left[name] += RANKS * means[name]
    kept = [compressor.memory.state_dict() for _, compressor in made]
    assert all(float(one["one"].norm()) > 1 for one in kept)
    for name, total in left.items():
        whole = total + sum(one.get(name, torch.zeros(())) for one in kept)
        assert float((whole - came[name]).norm()) < 1e-5 * float(came[name].norm()), name


@pytest.mark.parametrize("kind", BOTH)
def test_a_gradient_of_low_rank_arrives_whole(kind):
    """Gradients of at most this rank lose nothing: in one step, or in two of one sum each."""

    def low(rank: int, step: int) -> Gradients:
        del step
        generator = Generator().manual_seed(rank)
        rows = {name: shape.numel() // shape[0] for name, shape in SHAPES.items()}
        one = Generator().manual_seed(99)
        ends = {n: torch.randn(s[0], 2, generator=one) for n, s in SHAPES.items()}
        return {n: (ends[n] @ torch.randn(2, rows[n], generator=generator)).view(s)
                for n, s in SHAPES.items()}  # fmt: skip

    made, bucket = ways(kind), bucket_of(2)
    sums = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in (1, 2):
        means = averaged(made, bucket, step, low)
        sums = {name: sums[name] + mean for name, mean in means.items()}
        if kind is PowerSGD or step == 2:
            for name, total in sums.items():
                expected = step * sum(low(rank, 1)[name] for rank in range(RANKS)) / RANKS
                torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", BOTH)
def test_a_step_without_gradient_leaves_a_way_on(kind):
    made, bucket = ways(kind), bucket_of(2)
    zero = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in (1, 2, 3):
        assert not any(m.any() for m in averaged(made, bucket, step, lambda *_: zero).values())
    for step in (4, 5):
        assert all(mean.isfinite().all() and mean.any() for mean in
                   averaged(made, bucket, step).values())  # fmt: skip


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_gradients_of_any_size(kind, scale):
    """Products of two gradients' sizes leave float32; none is formed."""
    made, bucket = ways(kind), bucket_of(2)
    plain = ways(kind)

    def scaled(rank: int, step: int) -> Gradients:
        return {name: one * scale for name, one in gradients(rank, step).items()}

    for step in (1, 2, 3):
        means = averaged(made, bucket, step, scaled)
        expected = averaged(plain, bucket, step)
        for name, mean in means.items():
            # By the norm: where singular values are close, rounding turns a subspace a little.
            error = (mean / scale - expected[name]).norm()
            assert error <= 1e-3 * expected[name].norm()


@pytest.mark.parametrize("kind", BOTH)
def test_a_gradient_that_is_not_finite_is_known_to_all(kind):
    made, bucket = ways(kind), bucket_of(2)

    def broken(rank: int, step: int) -> Gradients:
        given = gradients(rank, step)
        given["two"][3, 4] = torch.nan if rank == 1 else 0.0
        return given

    before = made[0][0].state_dict()
    told: list[str] = []

    def body(rank: int) -> None:
        flat = torch.cat([broken(rank, 1)[slot.name].flatten() for slot in bucket.slots])
        encoded = made[rank][0].encode(bucket, flat, 1)
        with pytest.raises(CodecError, match="of bucket 0 of step 1: a rank's gradient is not"):
            made[rank][0].exchange(bucket, encoded, 1)
        told.append("so")

    together([lambda rank=rank: body(rank) for rank in range(RANKS)])
    assert len(told) == RANKS
    after = made[0][0].state_dict()
    assert all(after[name].equal(one) for name, one in before.items())


@pytest.mark.parametrize("kind", BOTH)
def test_who_begins_where_another_ended_goes_on_alike(kind):
    made, bucket = ways(kind), bucket_of(2)
    for step in (1, 2, 3):
        averaged(made, bucket, step)
    again = ways(kind)
    for (old, before), (new, after) in zip(made, again, strict=True):
        new.load_state_dict(old.state_dict())
        after.memory.load_state_dict(before.memory.state_dict())
    for step in (4, 5):
        one, other = averaged(made, bucket, step), averaged(again, bucket, step)
        assert all(mean.equal(other[name]) for name, mean in one.items())


def test_a_change_of_rank_keeps_what_it_can():
    warm = WarmStart(1)
    first = warm.factor("a", 5, 3, torch.device("cpu")).clone()
    assert warm.factor("a", 5, 2, torch.device("cpu")).equal(first[:, :2])
    more = warm.factor("a", 5, 4, torch.device("cpu"))
    assert more[:, :2].equal(first[:, :2])
    assert more.isfinite().all()


def test_foreign_factors_are_refused():
    warm = WarmStart(1)
    for bad in (torch.ones(3), torch.ones(3, 2).double(), torch.full((3, 2), torch.nan)):
        with pytest.raises(CheckpointError, match="must be a matrix of finite float32"):
            warm.load_state_dict({"a": bad})
    warm.load_state_dict({"a": torch.ones(3, 2)})
    with pytest.raises(CheckpointError, match="has 3 rows in the checkpoint; 4 were expected"):
        warm.factor("a", 4, 2, torch.device("cpu"))


def test_what_factors_do_not_make_smaller_travels_dense():
    made, bucket = ways(PowerSGD), bucket_of(9)
    means = averaged(made, bucket, 1)
    for name in SHAPES:
        expected = sum(gradients(rank, 1)[name] for rank in range(RANKS)) / RANKS
        torch.testing.assert_close(means[name], expected)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("spec", ["topk", "svd(rank=0)", "svd(rank=2, factors=fp16)"])
def test_other_codecs_are_refused(kind, spec):
    assert REDUCTIONS[kind.__name__] is kind
    with pytest.raises(ConfigError, match=rf"--comm-type {kind.__name__} sends two factors"):
        kind.adapt_codec(make_codec(spec))


def test_another_memory_is_refused():
    transport = network(1)[0]
    compressor = Compressor(make_memory("none"), Compression(), 1, SEED)
    with pytest.raises(ConfigError, match="go with memory residual or dgc, not none"):
        PowerSGD(Direct(transport, PATIENCE_S), compressor)
