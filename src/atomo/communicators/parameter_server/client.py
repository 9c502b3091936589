"""A worker's end of the parameter server."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.compressor import Compressor
from atomo.communicators.parameter_server.follower import Follower
from atomo.communicators.parameter_server.messages import RAW, read_members, read_weights
from atomo.communicators.parameter_server.relay import (
    ChainBroken,
    broken_frame,
    forward_frames,
    read_chain,
    read_relay,
    receive_relayed,
)
from atomo.communicators.parameter_server.uplink import MASTER, Uplink
from atomo.communicators.report import Report
from atomo.communicators.state import State, read_state, state_frame
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.transports import Transport
from atomo.wire import Bytes, Flag, Header, Kind, pack, read_header

__all__ = ["Client", "Command"]

ORDERS = (Kind.WEIGHTS, Kind.RELAY, Kind.BEGIN, Kind.SAVE, Kind.STATE, Kind.STOP)
STALE = (Kind.BEGIN, Kind.HASH)  # orders that were to follow what came down a chain
WHOLE = (Kind.WEIGHTS, Kind.RELAY, Kind.SNAPSHOT)  # what needs nothing to have come before
LEADING = (Kind.GRADIENT, Kind.UPDATE, Kind.DELTA, Kind.SNAPSHOT, Kind.HASH, Kind.CHAIN)
PATIENCE = 1.5  # a worker waits this much longer, so that the master's better message comes first


@dataclass(frozen=True)
class Command:
    """What the master wants of a worker next."""

    kind: Kind
    step: int
    weights: Float[Tensor, " n"] | None = None
    """At which to compute the gradient of `step`, where that is what the master wants."""
    state: dict[str, Tensor] | None = None
    follow_s: float = 0.0
    """Of the wait for it: how long it took to repeat the master's steps."""
    workers: tuple[int, ...] = ()
    """Who shares the samples of the step, in rank order."""


@final
class Client:
    """A worker's end."""

    def __init__(
        self,
        transport: Transport,
        entries: int,
        compressor: Compressor,
        timeout_s: float,
        threads: int = 1,
        follower: Follower | None = None,
        dtype: torch.dtype = torch.float32,
        waits: bool = False,
    ) -> None:
        """A client.

        Args:
            transport: what connects it with the master.
            entries: of the flat weights.
            compressor: turns buckets into frames.
            timeout_s: the longest wait for the master.
            threads: that compress, beside whoever calls `push`; 1: the caller compresses.
            follower: repeats the master's steps; None: weights come whole.
            dtype: what whole weights travel as.
            waits: whether it is a spare, which hears nothing before it is needed.
        """
        self._transport = transport
        self._entries = entries
        self._compressor = compressor
        self._follower, self._dtype = follower, dtype
        self._timeout_s = PATIENCE * timeout_s
        keep = discard if follower is None else follower.keep
        self._uplink = Uplink(transport, compressor, self._timeout_s, threads, keep)
        self._step, self._waits = 0, waits
        self.asked_at = 0.0
        """When it began to wait for the last order, by the performance counter."""
        self._cut_off = False  # whether what was to come down a chain has not come
        self._workers = tuple(range(1, transport.size))  # as the master last said

    def pull(self) -> Command:
        """Waits for the master's next order.

        Raises:
            FrameError: what came is none, or has weights of another model.
        """
        self.asked_at = time.perf_counter()
        while True:
            try:
                return self._ordered()
            except ChainBroken:
                self._cut_off = True
                frame = broken_frame(self._step, self._transport.rank)
                self._transport.send(MASTER, frame, "that nothing comes")

    def _ordered(self) -> Command:
        frame, header, follow_s = self._next_order()
        self._heed(header)
        self._step = header.step
        order = Command(header.kind, header.step, follow_s=follow_s, workers=self._workers)
        match header.kind:
            case Kind.WEIGHTS | Kind.RELAY:
                weights = self._read_weights(header, frame)
                return replace(order, kind=Kind.WEIGHTS, weights=weights)
            case Kind.BEGIN:
                return replace(order, weights=self._following(header).weights_for(header.step))
            case Kind.STATE:
                return replace(order, state=read_state(frame))
        return order

    def _heed(self, header: Header) -> None:
        """Takes back what came too late."""
        if header.flags & Flag.LATE:
            self._compressor.take_back()

    def _next_order(self) -> tuple[Bytes, Header, float]:
        """The next frame that is one, once what leads to its weights is taken in: in seconds."""
        follow_s = 0.0
        what = f"the master's order after step {self._step}"
        while True:
            frame = self._received(what)
            header = read_header(frame)
            self._cut_off = self._cut_off and header.kind not in WHOLE
            if self._cut_off and header.kind in STALE:
                self._heed(header)
                continue
            if header.kind in ORDERS:
                return frame, header, follow_s
            if header.kind is Kind.MEMBERS:
                self._workers = read_members(frame, self._transport.rank, self._transport.size - 1)
                continue
            if header.kind not in LEADING:
                raise FrameError(f"the master sent a {header.kind.name}, which is no order")
            for one in self._handed(header, frame):
                started = time.perf_counter()
                self._follow(self._following(header), one)
                follow_s += time.perf_counter() - started

    def _received(self, what: str) -> Bytes:
        """The next frame of the master's."""
        if self._waits:
            self._waits = False
            frame = self._transport.wait_idle(MASTER, "a place to take").data
            self.asked_at = time.perf_counter()
            return frame
        return self._transport.receive(MASTER, self._timeout_s, what).data

    def _handed(self, header: Header, frame: Bytes) -> Iterator[Bytes]:
        """The frame itself, or those that it says come down a chain; they are handed on."""
        if header.kind is not Kind.CHAIN:
            yield frame
            return
        relay, count = read_chain(frame, self._transport.rank, self._transport.size)
        what = f"the update of step {header.step}"
        yield from forward_frames(self._transport, relay, count, self._timeout_s, what)

    def _follow(self, follower: Follower, frame: Bytes) -> None:
        header = read_header(frame)
        if header.kind is Kind.HASH:
            self._transport.send(MASTER, follower.hash(header.step), "a hash")
        else:
            follower.take(header, frame)

    def _read_weights(self, header: Header, frame: Bytes) -> Float[Tensor, " n"]:
        """Weights that came whole, or come in pieces now."""
        if self._follower is not None:
            self._follower.lose()
        if header.kind is Kind.WEIGHTS:
            return read_weights(frame, self._entries, self._dtype)
        relay = read_relay(frame, self._transport.rank, self._transport.size)
        step, timeout_s, dtype = header.step, self._timeout_s, self._dtype
        return receive_relayed(self._transport, relay, step, self._entries, timeout_s, dtype)

    def _following(self, header: Header) -> Follower:
        if self._follower is None:
            raise FrameError(
                f"the master sent a {header.kind.name}, which is no order to a worker that gets "
                "its weights whole"
            )
        return self._follower

    def begin(self, buckets: Sequence[Bucket]) -> None:
        """Opens the step that was ordered, with the codecs that serve in it."""
        self._uplink.begin(self._step, buckets)

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Sends the gradient of a bucket, which is scratch space until `flush` returned.

        Raises:
            CodecError: a codec cannot carry it.
        """
        self._uplink.push(bucket, flat)

    def flush(self) -> None:
        """Sends what waited for the whole gradient, or is not compressed yet.

        Raises:
            CodecError: a codec cannot carry it.
        """
        self._uplink.flush()

    @property
    def encode_s(self) -> float:
        """Spent on encoding in this step."""
        return self._uplink.encode_s

    @property
    def send_s(self) -> float:
        """Spent on sending in this step, and on waiting for what workers agree on."""
        return self._uplink.send_s

    def report(self, report: Report) -> None:
        """Declares the gradient of this step complete."""
        self._reply(pack(self._header(Kind.REPORT), [report.tensor()], RAW), "a report")

    def send_state(self, state: State) -> None:
        """Answers an order to save."""
        self._reply(state_frame(self._header(Kind.STATE), state), "a state")

    def _header(self, kind: Kind) -> Header:
        return Header(kind, self._step, self._transport.rank)

    def _reply(self, frame: Bytes, what: str) -> None:
        self._transport.send(MASTER, frame, what)


def discard(step: int, bucket: int, frame: Bytes) -> None:
    """Nobody needs what was sent."""
    del step, bucket, frame
