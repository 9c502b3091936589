"""Workers that encode with one shared scale: the agreement, its time, and its receivers."""

import math
import re

import pytest
import torch
from support.draws import unchecked
from support.harness import run_threads, settings, together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import CodecError
from atomo.exchange import Client, Compressor, Report, Server
from atomo.fusion import Bucket, plan
from atomo.memory import NoMemory
from atomo.options.grouping import megabytes
from atomo.training.job.events import Event, StepDone
from atomo.transports import network
from atomo.wire import Compression, Header, Kind, pack

PARAMETERS = [("a", Size((20, 30))), ("b", Size((30,))), ("c", Size((40, 20)))]
ENTRIES = 20 * 30 + 30 + 40 * 20
REPORT = Report(1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4)
RAW = Compression(codec="none")
TIMEOUT_S = 600.0  # only a hang takes as long


class ServerAndWorkers:
    """A server and clients with gradients of their own, in threads where they wait."""

    def __init__(self, needed: int, code: str) -> None:
        self.buckets = plan(PARAMETERS, make_codec(code), megabytes(0.0026))
        transports = network(4)
        self.transports = transports
        self.server = Server(transports[0], self.buckets, needed, TIMEOUT_S)
        compressors = [Compressor(NoMemory(), RAW, t.rank, seed=0) for t in transports[1:]]
        self.clients = [
            Client(t, ENTRIES, c, TIMEOUT_S)
            for t, c in zip(transports[1:], compressors, strict=True)
        ]
        self.sum = torch.zeros(ENTRIES)

    def gradient(self, worker: int, bucket: Bucket, step: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(100 * worker + 10 * step + bucket.number)
        return torch.randn(bucket.size, generator=generator) * worker

    def work(self, worker: int, step: int = 1) -> None:
        """Runs one step of a worker."""
        assert self.clients[worker - 1].pull().step == step
        self.answer(worker, step)

    def work_until_stopped(self, worker: int) -> None:
        """Every step that a worker is given."""
        while (order := self.clients[worker - 1].pull()).kind is not Kind.STOP:
            self.answer(worker, order.step)

    def answer(self, worker: int, step: int) -> None:
        """Sends a worker's gradients of one step."""
        client = self.clients[worker - 1]
        held = [(bucket, self.gradient(worker, bucket, step)) for bucket in self.buckets]
        client.begin(self.buckets)
        for bucket, flat in held[::-1]:  # in whatever order they come
            client.push(bucket, flat)
        client.flush()
        client.report(REPORT)

    def broadcast(self, step: int) -> None:
        self.server.broadcast(step, torch.zeros(ENTRIES))

    def largest(self, workers: tuple[int, ...]) -> dict[str, float]:
        """Returns the largest magnitude that any worker has for a parameter, written anew."""
        return {
            slot.name: max(
                float(self.gradient(w, bucket)[slot.start : slot.stop].abs().max()) for w in workers
            )
            for bucket in self.buckets
            for slot in bucket.slots
        }


def test_all_workers_encode_with_the_largest_scale_and_sums_are_small_integers():
    cast = ServerAndWorkers(needed=3, code="terngrad(clip=0, scale=shared)")
    assert len(cast.buckets) == 2
    cast.broadcast(1)
    collect = lambda: cast.server.collect(cast.sum)  # noqa: E731
    together([collect, *(lambda w=w: cast.work(w) for w in (1, 2, 3))])
    largest = cast.largest((1, 2, 3))
    for bucket in cast.buckets:
        for slot in bucket.slots:
            mean = cast.sum[bucket.offset + slot.start : bucket.offset + slot.stop]
            if len(slot.shape) < 2:  # travels as it is
                continue
            counts = mean * 3 / largest[slot.name]
            torch.testing.assert_close(counts, counts.round(), atol=1e-5, rtol=0)
            assert set(counts.round().int().tolist()) <= {-3, -2, -1, 0, 1, 2, 3}
            assert len(counts.round().unique()) > 2


@pytest.mark.long
@pytest.mark.slow
def test_the_mean_is_unbiased():
    """Within five standard errors, over draws that differ by the step."""
    draws, total = 400, torch.zeros(ENTRIES)
    cast = ServerAndWorkers(needed=3, code="terngrad(clip=0, scale=shared)")
    cast.gradient = lambda w, b, step=1: ServerAndWorkers.gradient(cast, w, b)  # type: ignore[method-assign]

    def serve() -> None:
        for step in range(1, draws + 1):
            cast.broadcast(step)
            cast.server.collect(cast.sum)
            total.add_(cast.sum)

    def work(worker: int) -> None:
        for step in range(1, draws + 1):
            cast.work(worker, step)

    with unchecked():  # the tests before have made the same calls under the checks
        together([serve, *(lambda w=w: work(w) for w in (1, 2, 3))])
    largest = cast.largest((1, 2, 3))
    for bucket in cast.buckets:
        gradients = torch.stack([cast.gradient(w, bucket) for w in (1, 2, 3)])
        scale = torch.cat([torch.full((s.shape.numel(),), largest[s.name]) for s in bucket.slots])
        variance = (gradients.abs() * (scale - gradients.abs())).sum(0) / 9
        found = total[bucket.offset : bucket.offset + bucket.size] / draws
        errors = (found - gradients.mean(0)).abs() / (variance / draws).sqrt().clamp(min=1e-6)
        assert float(errors.max()) < 5


def test_who_asks_too_late_is_not_kept_waiting():
    cast = ServerAndWorkers(needed=2, code="terngrad(scale=shared)")
    cast.broadcast(1)
    collect = lambda: cast.server.collect(cast.sum)  # noqa: E731
    together([collect, lambda: cast.work(1), lambda: cast.work(2)])
    cast.broadcast(2)

    def serve() -> None:
        cast.server.collect(cast.sum)
        cast.server.stop()

    # The third asks for scales of step 1, whether step 2 is still open or over by then.
    together([serve, *(lambda w=w: cast.work_until_stopped(w) for w in (1, 2, 3))])


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ([], "0 scales came, and 2 were expected"),
        ([1.0], "1 scales came, and 2 were expected"),
        ([1.0, 2.0, 3.0], "scales|most|dimension"),
        ([math.nan, 1.0], "finite and not negative"),
        ([math.inf, 1.0], "finite and not negative"),
        ([-1.0, 1.0], "finite and not negative"),
    ],
)
def test_hostile_scales_are_refused(scales, message):
    cast = ServerAndWorkers(needed=3, code="terngrad(scale=shared)")
    cast.broadcast(1)
    frame = pack(Header(Kind.SCALES, 1, 2), [torch.tensor(scales, dtype=torch.float64)], RAW)
    cast.transports[2].send(0, frame, "scales")
    others = [lambda w=w: cast.work(w) for w in (1, 3)]
    together([lambda: cast.server.collect(cast.sum), *others])
    (told,) = cast.server.take_notes()
    assert re.search(message, told)


def test_a_gradient_that_is_not_finite_is_named():
    cast = ServerAndWorkers(needed=3, code="terngrad(scale=shared)")
    cast.broadcast(1)
    cast.clients[0].pull()
    held = [(bucket, torch.full((bucket.size,), math.nan)) for bucket in cast.buckets]
    cast.clients[0].begin(cast.buckets)
    for bucket, flat in held:
        cast.clients[0].push(bucket, flat)
    with pytest.raises(CodecError, match=r"the gradient of c: terngrad: .* NaN or infinity"):
        cast.clients[0].flush()


@pytest.mark.slow
def test_it_trains_and_a_schedule_may_begin_and_end_it(tmp_path):
    told: list[Event] = []
    shared = "terngrad(scale=shared)"
    chosen = settings(
        tmp_path, n=4, network="FC", lr=0.005, batch_size=32, max_steps=44, code=shared,
        code_schedule=f"0: sgd; 0.5: {shared}; 1.5: fp16", memory="none",
    )  # fmt: skip
    run_threads(chosen, told.append)
    losses = [event.loss for event in told if isinstance(event, StepDone)]
    assert len(losses) == 44
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
