"""A worker's end of the parameter server."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.exchange import Compressor
from atomo.communicators.parameter_server.follower import Follower
from atomo.communicators.parameter_server.messages import RAW, read_weights
from atomo.communicators.report import Report
from atomo.communicators.scales import read_scales
from atomo.communicators.state import State, read_state, state_tensor
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.transports import Transport
from atomo.wire import Bytes, Flag, Header, Kind, pack, read_header

__all__ = ["Client", "Order"]

MASTER = 0
ORDERS = (Kind.WEIGHTS, Kind.BEGIN, Kind.SAVE, Kind.STATE, Kind.STOP)
LEADING = (Kind.GRADIENT, Kind.UPDATE, Kind.DELTA, Kind.SNAPSHOT, Kind.HASH)  # to an order
PATIENCE = 1.5  # a worker waits this much longer, so that the master's better message comes first


@dataclass(frozen=True)
class Order:
    """What the master wants of a worker next."""

    kind: Kind
    step: int
    weights: Float[Tensor, " n"] | None = None
    """At which to compute the gradient of `step`, where that is what the master wants."""
    state: dict[str, Tensor] | None = None
    follow_s: float = 0.0
    """Of the wait for it: how long it took to repeat the master's steps."""


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
    ) -> None:
        """A client.

        Args:
            transport: what connects it with the master.
            entries: of the flat weights.
            compressor: turns buckets into frames.
            timeout_s: the longest wait for the master.
            threads: that compress, beside whoever calls `push`; 1: the caller compresses.
            follower: repeats the master's steps; None: weights come whole.
        """
        self._transport = transport
        self._pool = ThreadPoolExecutor(threads, "encode", one_thread) if threads > 1 else None
        self._coming: deque[tuple[Bucket, Future[Bytes]]] = deque()
        self._entries = entries
        self._compressor = compressor
        self._follower = follower
        self._timeout_s = PATIENCE * timeout_s
        self._step = 0

    def pull(self) -> Order:
        """Waits for the master's next order.

        Raises:
            FrameError: what came is none, or has weights of another model.
        """
        frame, header, follow_s = self._next_order()
        if header.flags & Flag.LATE:
            self._compressor.take_back()
        self._step = header.step
        order = Order(header.kind, header.step, follow_s=follow_s)
        match header.kind:
            case Kind.WEIGHTS:
                if self._follower is not None:
                    self._follower.lose()
                return replace(order, weights=read_weights(frame, self._entries))
            case Kind.BEGIN:
                return replace(order, weights=self._following(header).weights_for(header.step))
            case Kind.STATE:
                return replace(order, state=read_state(frame))
        return order

    def _next_order(self) -> tuple[Bytes, Header, float]:
        """The next frame that is one, once what leads to its weights is taken in: in seconds."""
        follow_s = 0.0
        what = f"the master's order after step {self._step}"
        while True:
            frame = self._transport.receive(MASTER, self._timeout_s, what).data
            header = read_header(frame)
            if header.kind in ORDERS:
                return frame, header, follow_s
            if header.kind not in LEADING:
                raise FrameError(f"the master sent a {header.kind.name}, which is no order")
            follower, started = self._following(header), time.perf_counter()
            if header.kind is Kind.HASH:
                self._transport.send(MASTER, follower.hash(header.step), "a hash")
            else:
                follower.take(header, frame)
            follow_s += time.perf_counter() - started

    def _following(self, header: Header) -> Follower:
        if self._follower is None:
            raise FrameError(
                f"the master sent a {header.kind.name}, which is no order to a worker that gets "
                "its weights whole"
            )
        return self._follower

    def agree(self, held: Sequence[tuple[Bucket, Float[Tensor, "..."]]]) -> float:
        """Has all workers encode these buckets, a whole gradient, with the same scales.

        Returns:
            The seconds between asking and knowing.

        Raises:
            CodecError: a codec cannot carry the gradient.
        """
        asked: dict[str, float] = {}
        for bucket, flat in sorted(held, key=lambda one: one[0].number):
            asked |= self._compressor.propose(bucket, flat)
        started = time.perf_counter()
        self._reply(Kind.SCALES, torch.tensor([*asked.values()], dtype=torch.float64))
        what = f"the scales of step {self._step}"
        frame = self._transport.receive(MASTER, self._timeout_s, what).data
        scales = read_scales(frame, len(asked), 0)  # none: this worker asked too late
        self._compressor.agree(dict(zip(asked, scales, strict=False)))
        return time.perf_counter() - started

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> float:
        """Compresses and sends one bucket. `flat` is no longer the gradient afterwards.

        With several threads it only begins to, and sends what is ready: `flat` is not to be touched
        before `flush`.

        Returns:
            The seconds that sending took.

        Raises:
            CodecError: a codec cannot carry the gradient.
        """
        if self._pool is None:
            return self._send(bucket, self._compressor.compress(bucket, flat, self._step))
        work = self._pool.submit(self._compressor.compress, bucket, flat, self._step)
        self._coming.append((bucket, work))
        return self._send_while(lambda: self._coming[0][1].done())

    def flush(self) -> float:
        """Sends what is still being compressed.

        Returns:
            The seconds that sending took.

        Raises:
            CodecError: a codec cannot carry the gradient.
        """
        return self._send_while(lambda: True)

    def _send_while(self, ready: Callable[[], bool]) -> float:
        """Sends in the order in which the buckets came."""
        spent = 0.0
        while self._coming and ready():
            bucket, work = self._coming.popleft()
            spent += self._send(bucket, work.result())
        return spent

    def _send(self, bucket: Bucket, frame: Bytes) -> float:
        started = time.perf_counter()
        if self._follower is not None:
            self._follower.keep(self._step, bucket.number, frame)
        self._transport.send(MASTER, frame, f"bucket {bucket.number} of step {self._step}")
        return time.perf_counter() - started

    def report(self, report: Report) -> None:
        """Declares the gradient of this step complete."""
        self._reply(Kind.REPORT, report.tensor())

    def send_state(self, state: State) -> None:
        """Answers an order to save."""
        self._reply(Kind.STATE, state_tensor(state))

    def _reply(self, kind: Kind, section: Tensor) -> None:
        header = Header(kind, self._step, self._transport.rank)
        self._transport.send(MASTER, pack(header, [section], RAW), f"a {kind.name.lower()}")


def one_thread() -> None:
    """Several buckets at once are what keeps the cores busy, not several threads on each."""
    torch.set_num_threads(1)  # of this thread: the others keep theirs
