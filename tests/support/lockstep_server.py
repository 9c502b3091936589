"""A server and three workers that one thread plays, one of whom may lie, and the lies."""

import struct
from collections.abc import Callable
from dataclasses import replace

import torch
from support.tampering_transport import TamperingTransport
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import FrameFault
from atomo.exchange import Client, Compressor, Report, Server
from atomo.exchange.compressor import add_frame
from atomo.exchange.parameter_server.ordered_sum import OrderedSum
from atomo.fusion import Bucket, named_slices, plan
from atomo.memory import Residual
from atomo.options.grouping import megabytes
from atomo.transports import network
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack
from atomo.wire.frame import CHECKSUM_AT, checksum

__all__ = [
    "ENTRIES",
    "NUMBER_TAMPERINGS",
    "PARAMETERS",
    "RAW",
    "REPORT",
    "TAMPERINGS",
    "TIMEOUT_S",
    "LockstepServer",
    "empty",
    "flipped",
    "replayed",
    "tamper",
    "truncated",
]  # fmt: skip

PARAMETERS = [("conv", Size((6, 4, 3, 3))), ("fc", Size((9, 20))), ("bias", Size((9,)))]
ENTRIES = 6 * 4 * 9 + 180 + 9
RAW = Compression(codec="none")
TIMEOUT_S = 600.0  # only a hang takes as long
REPORT = Report(1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4)
TAMPERED = 2  # the rank whose frames a test may change, among three


class LockstepServer:
    """A server and three workers, run from the test's own thread; one may send bad frames."""

    def __init__(
        self, code: str, needed: int = 3, max_strikes: int = 3, late_counts: bool = True,
        images: int = 0,
    ) -> None:  # fmt: skip
        self.buckets = plan(PARAMETERS, make_codec(code), megabytes(1e-3))
        self.wires = network(4)
        self.server = Server(
            self.wires[0], self.buckets, needed, TIMEOUT_S, late_counts=late_counts,
            max_strikes=max_strikes, images=images,
        )  # fmt: skip
        self.tampering = TamperingTransport(self.wires[TAMPERED])
        ends = [self.wires[1], self.tampering, self.wires[3]]
        self.memories = [Residual() for _ in ends]
        self.clients = [
            Client(end, ENTRIES, Compressor(memory, RAW, end.rank, seed=0), TIMEOUT_S)
            for end, memory in zip(ends, self.memories, strict=True)
        ]
        self.sum = torch.zeros(ENTRIES)
        # By worker: all gradients, and what was sent of those that counted.
        self.computed = [torch.zeros(ENTRIES) for _ in ends]
        self.used = [torch.zeros(ENTRIES) for _ in ends]

    def broadcast(self, step: int) -> None:
        self.server.broadcast(step, torch.full((ENTRIES,), float(step)))

    def answer(self, worker: int) -> int:
        """Answers a worker's next command, and returns the step."""
        client = self.clients[worker - 1]
        step = client.pull().step
        client.begin(self.buckets)
        generator = torch.Generator().manual_seed(10 * step + worker)
        for bucket in self.buckets:
            flat = torch.randn(bucket.size, generator=generator)
            self.computed[worker - 1][bucket.offset : bucket.offset + bucket.size] += flat
            client.push(bucket, flat)
        client.flush()
        client.report(REPORT)
        return step

    def step(self, step: int, workers: tuple[int, ...] = (1, 2, 3)) -> list[int]:
        """Runs a whole step with these workers; returns those that counted."""
        self.broadcast(step)
        for worker in workers:
            assert self.answer(worker) == step
        counted = [*self.server.collect(self.sum)]
        for worker in counted:
            for bucket, frame, _ in self.clients[worker - 1]._compressor._sent.values():
                part = self.used[worker - 1][bucket.offset : bucket.offset + bucket.size]
                add_frame(bucket, frame, part, 1.0)
        return counted

    def kept(self, worker: int) -> Tensor:
        """Returns the residuals of a worker's memory, in the order of the entries."""
        out, state = torch.zeros(ENTRIES), self.memories[worker - 1].state_dict()
        for name, view in named_slices(out, self.buckets):
            view.copy_(state.get(name, torch.zeros(view.shape)).view(view.shape))
        return out

    def of(self, *workers: int) -> Tensor:
        """Returns the expected sum of these workers' gradients, as they were sent."""
        out = torch.zeros(ENTRIES)
        sent = {w: self.clients[w - 1]._compressor._sent for w in workers}
        arrived = {w: {n: one[1] for n, one in sent[w].items()} for w in workers}
        total = OrderedSum(self.buckets, out, len(workers), [1 / 3])
        for bucket in self.buckets:
            total.advance(bucket, arrived, [*workers])
        return out


def sealed(frame: Bytes) -> Bytes:
    """Returns the frame with a valid checksum."""
    struct.pack_into("<Q", frame.data, CHECKSUM_AT, checksum(frame))
    return frame


def truncated(frame: Bytes, of: Bucket) -> list[Bytes]:
    return [frame[: frame.size // 2].copy()]


def truncated_and_sealed(frame: Bytes, of: Bucket) -> list[Bytes]:
    return [sealed(frame[:-1].copy())]


def flipped(frame: Bytes, of: Bucket) -> list[Bytes]:
    other = frame.copy()
    other[-1] ^= 1
    return [other]


def empty(frame: Bytes, of: Bucket) -> list[Bytes]:
    return [frame[:0].copy()]


def replayed(frame: Bytes, of: Bucket) -> list[Bytes]:
    return [frame, frame.copy()]


def with_header(frame: Bytes, of: Bucket, change: Callable[[Header], Header]) -> list[Bytes]:
    return [pack(change(read_header(frame)), unpack(frame, of.fields), RAW)]


def of_an_old_step(frame: Bytes, of: Bucket) -> list[Bytes]:
    return with_header(frame, of, lambda h: replace(h, step=h.step - 1))


def of_another_worker(frame: Bytes, of: Bucket) -> list[Bytes]:
    return with_header(frame, of, lambda h: replace(h, worker=1))


def of_another_codec(frame: Bytes, of: Bucket) -> list[Bytes]:
    return with_header(frame, of, lambda h: replace(h, layout_hash=h.layout_hash ^ 1))


def of_a_bucket_that_is_not(frame: Bytes, of: Bucket) -> list[Bytes]:
    return with_header(frame, of, lambda h: replace(h, bucket=77))


def with_lying_lengths(frame: Bytes, of: Bucket) -> list[Bytes]:
    """Changes the first dimension of the first section."""
    other = frame.copy()
    other[32 + 2 + 3] ^= 1
    return [sealed(other)]


def with_too_few_sections(frame: Bytes, of: Bucket) -> list[Bytes]:
    return [pack(read_header(frame), unpack(frame, of.fields)[:-1], RAW)]


def with_no_numbers(frame: Bytes, of: Bucket) -> list[Bytes]:
    """NaN in every scale, norm, mean and value."""
    return numbers(frame, of, float("nan"))


def with_infinite_numbers(frame: Bytes, of: Bucket) -> list[Bytes]:
    return numbers(frame, of, float("inf"))


def numbers(frame: Bytes, of: Bucket, value: float) -> list[Bytes]:
    sections = unpack(frame, of.fields)
    told = [torch.full_like(s, value) if s.is_floating_point() else s for s in sections]
    return [pack(read_header(frame), told, RAW)]


TAMPERINGS = {
    truncated: FrameFault.DAMAGED,
    truncated_and_sealed: FrameFault.MALFORMED,
    flipped: FrameFault.DAMAGED,
    empty: FrameFault.DAMAGED,
    replayed: FrameFault.TWICE,
    of_an_old_step: FrameFault.STALE,
    of_another_worker: FrameFault.STRANGE,
    of_another_codec: FrameFault.STRANGE,
    of_a_bucket_that_is_not: FrameFault.STRANGE,
    with_lying_lengths: FrameFault.MALFORMED,
    with_too_few_sections: FrameFault.MALFORMED,
    with_no_numbers: FrameFault.NUMBERS,
    with_infinite_numbers: FrameFault.NUMBERS,
}
NUMBER_TAMPERINGS = 2  # of them, the last


def tamper(
    lockstep: LockstepServer, tamper: Callable[[Bytes, Bucket], list[Bytes]], at: int
) -> None:
    """Makes worker 2 send a bad frame for one of its buckets."""

    def told(frame: Bytes, number: int) -> list[Bytes]:
        header = read_header(frame)
        if header.kind is not Kind.GRADIENT or header.bucket != at:
            return [frame]
        return tamper(frame, lockstep.buckets[at])

    lockstep.tampering.tamper = told
