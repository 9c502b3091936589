"""Uplink of a worker: encodes and sends the gradients of its buckets."""

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
from atomo.exchange.engine.stages import one_thread
from atomo.exchange.parameter_server.frames.messages import RAW
from atomo.exchange.scales import read_scales
from atomo.fusion import Bucket
from atomo.transports import Transport
from atomo.wire import Bytes, Header, Kind, pack

__all__ = ["MASTER", "Uplink"]

MASTER: Final = 0

EncodeContext = Callable[[], AbstractContextManager[None]]
"""Context in which a bucket is encoded."""


@final
class Uplink:
    """Encoder and sender of a worker's gradients, step by step.

    A bucket is sent as soon as its gradient exists. If the workers agree on scales, or if the
    memory needs the norm of the whole gradient, all buckets wait for the last one.
    """

    def __init__(
        self,
        transport: Transport,
        compressor: Compressor,
        timeout_s: float,
        threads: int,
        on_sent: Callable[[int, int, Bytes], None],
    ) -> None:
        """Starts without a step.

        Args:
            transport: to the master.
            compressor: encodes buckets into frames.
            timeout_s: longest wait for the scales.
            threads: number of threads that encode; 1 if the caller of `push` encodes.
            on_sent: called with step, bucket and frame before each frame is sent.
        """
        self.encode_s = self.send_s = 0.0  # of this step; `send_s` includes the wait for scales
        self._transport, self._compressor = transport, compressor
        self._timeout_s, self._on_sent = timeout_s, on_sent
        self._pool = ThreadPoolExecutor(threads, "encode", one_thread) if threads > 1 else None
        self._streams = SideStreams()
        self._encoding: deque[tuple[Bucket, Future[Bytes]]] = deque()
        self._waiting: list[tuple[Bucket, Float[Tensor, " n"]]] = []
        self._step, self._buckets = 0, tuple[Bucket, ...]()
        self._agrees = self._needs_whole = False

    def begin(self, step: int, buckets: Sequence[Bucket]) -> None:
        """Opens a step with its buckets, which hold the codecs of the step."""
        self._step, self._buckets = step, tuple(buckets)
        self.encode_s = self.send_s = 0.0
        self._agrees = any(bucket.agreeing for bucket in buckets)
        self._needs_whole = self._agrees or self._compressor.memory.needs_norm

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Encodes and sends the gradient of a bucket. `flat` is scratch space until `flush`
        returns.

        Raises:
            CodecError: a codec cannot encode the gradient.
        """
        # The caller's bucket may hold the codecs of an earlier step.
        bucket = self._buckets[bucket.number]
        if self._needs_whole:
            self._waiting.append((bucket, flat))
        else:
            with self._timing_encoding():
                self._encode(bucket, flat)

    def flush(self) -> None:
        """Sends the buckets that waited for the whole gradient, and those still being encoded.

        Raises:
            CodecError: a codec cannot encode the gradient.
        """
        with self._timing_encoding():
            if self._waiting:
                norms = AsyncScalars(*(flat.norm() for _, flat in self._waiting)).values()
                self._compressor.memory.begin(math.hypot(*norms))
            if self._waiting and self._agrees:
                self._agree()
            for bucket, flat in self._waiting:
                self._encode(bucket, flat)
            self._waiting.clear()
            self._send_while(lambda: True)
            self._streams.join()  # the gradients are free to change

    @contextmanager
    def _timing_encoding(self) -> Iterator[None]:
        """Adds the time of the block, without the time spent on sending, to `encode_s`."""
        start, sent_s = time.perf_counter(), self.send_s
        yield
        self.encode_s += time.perf_counter() - start - (self.send_s - sent_s)

    @contextmanager
    def _timing_sending(self) -> Iterator[None]:
        """Adds the time of the block to `send_s`."""
        start = time.perf_counter()
        yield
        self.send_s += time.perf_counter() - start

    def _agree(self) -> None:
        """Proposes scales to the master, and encodes with the agreed scales of its answer."""
        proposals: dict[str, float] = {}
        for bucket, flat in sorted(self._waiting, key=lambda pair: pair[0].number):
            proposals |= self._compressor.propose(bucket, flat)
        section = torch.tensor([*proposals.values()], dtype=torch.float64)
        header = Header(Kind.SCALES, self._step, self._transport.rank)
        with self._timing_sending():
            self._transport.send(MASTER, pack(header, [section], RAW), "the scales")
            label = f"the scales of step {self._step}"
            frame = self._transport.receive(MASTER, self._timeout_s, label).data
        scales = read_scales(frame, len(proposals), 0)  # empty if this worker proposed too late
        self._compressor.agree(dict(zip(proposals, scales, strict=False)))

    def _encode(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Encodes and sends a bucket; with several threads, queues it and sends encoded ones."""
        # On a side stream, so that the device continues with the backward pass meanwhile.
        context = self._streams.after_current_stream(flat.device)
        if self._pool is None:
            self._send(bucket, self._compress(context, bucket, flat))
            return
        encoding = self._pool.submit(self._compress, context, bucket, flat)
        self._encoding.append((bucket, encoding))
        self._send_while(lambda: self._encoding[0][1].done())

    def _compress(self, context: EncodeContext, bucket: Bucket, flat: Float[Tensor, " n"]) -> Bytes:
        with context():
            return self._compressor.compress(bucket, flat, self._step)

    def _send_while(self, ready: Callable[[], bool]) -> None:
        """Sends encoded frames in the order of the pushes while the first one is `ready`."""
        while self._encoding and ready():
            bucket, encoding = self._encoding.popleft()
            self._send(bucket, encoding.result())

    def _send(self, bucket: Bucket, frame: Bytes) -> None:
        self._on_sent(self._step, bucket.number, frame)
        with self._timing_sending():
            label = f"bucket {bucket.number} of step {self._step}"
            self._transport.send(MASTER, frame, label)
