"""Uplink of a worker: holds a gradient if it must be whole, encodes it, and sends it."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.core.devices import AsyncScalars, SideStreams
from atomo.exchange.compressor import Compressor
from atomo.exchange.engine.threads import one_thread
from atomo.exchange.parameter_server.frames.messages import RAW
from atomo.exchange.scales import read_scales
from atomo.fusion import Bucket
from atomo.transports import Transport
from atomo.wire import Bytes, Header, Kind, pack

__all__ = ["MASTER", "Uplink"]

MASTER: Final = 0

Place = Callable[[], AbstractContextManager[None]]
"""Context in which a bucket is encoded."""


@final
class Uplink:
    """Sends the gradients of one step after another.

    A bucket goes as soon as it comes, unless workers agree on a scale first or the memory must know
    the norm of the whole gradient: then all wait for the last.
    """

    def __init__(
        self,
        transport: Transport,
        compressor: Compressor,
        timeout_s: float,
        threads: int,
        keep: Callable[[int, int, Bytes], None],
    ) -> None:
        """Starts without a step.

        Args:
            transport: what connects the worker with the master.
            compressor: turns buckets into frames.
            timeout_s: the longest wait for the scales.
            threads: that compress, beside whoever calls `push`; 1: the caller compresses.
            keep: gets step, bucket and frame of all that is sent.
        """
        self.encode_s = self.send_s = 0.0  # of this step; waiting for the scales is sending
        self._transport, self._compressor = transport, compressor
        self._timeout_s, self._keep = timeout_s, keep
        self._pool = ThreadPoolExecutor(threads, "encode", one_thread) if threads > 1 else None
        self._streams = SideStreams()
        self._coming: deque[tuple[Bucket, Future[Bytes]]] = deque()
        self._held: list[tuple[Bucket, Float[Tensor, " n"]]] = []
        self._step, self._buckets = 0, tuple[Bucket, ...]()
        self._agrees = self._holds = False

    def begin(self, step: int, buckets: Sequence[Bucket]) -> None:
        """Opens a step, with the codecs that serve in it."""
        self._step, self._buckets = step, tuple(buckets)
        self.encode_s = self.send_s = 0.0
        self._agrees = any(bucket.agreeing for bucket in buckets)
        self._holds = self._agrees or self._compressor.memory.needs_norm

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Takes the gradient of a bucket, which is scratch space until `flush` returned.

        Raises:
            CodecError: a codec cannot carry it.
        """
        # The codec of this step may be another than when the gradients were laid out.
        bucket = self._buckets[bucket.number]
        if self._holds:
            self._held.append((bucket, flat))
        else:
            with self._encoding():
                self._encode(bucket, flat)

    def flush(self) -> None:
        """Sends what is still held or being compressed: the gradient is whole.

        Raises:
            CodecError: a codec cannot carry it.
        """
        with self._encoding():
            if self._held:
                norms = AsyncScalars(*(flat.norm() for _, flat in self._held)).values()
                self._compressor.memory.begin(math.hypot(*norms))
            if self._held and self._agrees:
                self._agree()
            for bucket, flat in self._held:
                self._encode(bucket, flat)
            self._held.clear()
            self._send_while(lambda: True)
            self._streams.join()  # the gradients are free to change

    @contextmanager
    def _encoding(self) -> Iterator[None]:
        """Counts the time, less what sending takes of it, as encoding."""
        started, sent_s = time.perf_counter(), self.send_s
        yield
        self.encode_s += time.perf_counter() - started - (self.send_s - sent_s)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.send_s += time.perf_counter() - started

    def _agree(self) -> None:
        """Has all workers encode with the same scales."""
        asked: dict[str, float] = {}
        for bucket, flat in sorted(self._held, key=lambda pair: pair[0].number):
            asked |= self._compressor.propose(bucket, flat)
        section = torch.tensor([*asked.values()], dtype=torch.float64)
        header = Header(Kind.SCALES, self._step, self._transport.rank)
        with self._sending():
            self._transport.send(MASTER, pack(header, [section], RAW), "the scales")
            what = f"the scales of step {self._step}"
            frame = self._transport.receive(MASTER, self._timeout_s, what).data
        scales = read_scales(frame, len(asked), 0)  # none: this worker asked too late
        self._compressor.agree(dict(zip(asked, scales, strict=False)))

    def _encode(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Compresses and sends; with several threads it begins to, and sends what is ready."""
        place = self._streams.after_current_stream(
            flat.device
        )  # while the device goes on with the pass
        if self._pool is None:
            self._send(bucket, self._compressed(place, bucket, flat))
            return
        work = self._pool.submit(self._compressed, place, bucket, flat)
        self._coming.append((bucket, work))
        self._send_while(lambda: self._coming[0][1].done())

    def _compressed(self, place: Place, bucket: Bucket, flat: Float[Tensor, " n"]) -> Bytes:
        with place():
            return self._compressor.compress(bucket, flat, self._step)

    def _send_while(self, ready: Callable[[], bool]) -> None:
        """Sends in the order in which the buckets came."""
        while self._coming and ready():
            bucket, work = self._coming.popleft()
            self._send(bucket, work.result())

    def _send(self, bucket: Bucket, frame: Bytes) -> None:
        self._keep(self._step, bucket.number, frame)
        with self._sending():
            what = f"bucket {bucket.number} of step {self._step}"
            self._transport.send(MASTER, frame, what)
