"""The exchange beside the backward pass: threads encode, one sends, and one receives and decodes.

Buckets are sent and received in the order of their numbers, so that all ranks exchange them in the
same order, whatever the order in which their backward passes make them.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.base import Communicator, Exchanged, Finish, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor
from atomo.communicators.report import Report
from atomo.communicators.scales import read_scales
from atomo.communicators.spans import Spans
from atomo.communicators.telling import gather, tell
from atomo.communicators.threads import one_thread
from atomo.devices import AsyncScalars, SideStreams
from atomo.fusion import Bucket
from atomo.wire import Kind

__all__ = ["Pipeline", "Settled"]

Averaged = Callable[[Bucket, Float[Tensor, " n"]], None]
Place = Callable[[], AbstractContextManager[None]]
"""Where something is computed."""


@final
@dataclass(frozen=True)
class Settled:
    """What a step has cost this rank, once its mean is there."""

    encode_s: float
    decode_s: float
    wait_s: float  # for other ranks
    busy: Spans


@final
@dataclass(frozen=True)
class Held:
    """What a rank sends of a bucket, once it is encoded."""

    bucket: Bucket
    encoded: Future[Any]
    place: Place
    device: torch.device  # of the gradient


@final
class Pipeline(Communicator):
    """A communicator over all ranks of a collective, by one way to reduce a bucket."""

    def __init__(
        self,
        collective: Collective,
        compressor: Compressor,
        reduction: Reduction[Any],
        threads: int = 1,
        averaged: Averaged = lambda bucket, mean: None,
    ) -> None:
        """A communicator.

        Args:
            collective: connects the ranks.
            compressor: the one that `reduction` encodes with.
            reduction: how one bucket is averaged.
            threads: that encode.
            averaged: gets each bucket with its mean, in their order, in the thread that receives.
        """
        self._collective, self._compressor, self._reduction = collective, compressor, reduction
        self._averaged = averaged
        self._encoders = ThreadPoolExecutor(threads, "encode", one_thread)
        self._sender = ThreadPoolExecutor(1, "send", one_thread)
        self._receiver = ThreadPoolExecutor(1, "receive", one_thread)
        self._streams = SideStreams()

    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        # They may be some of a gradient's; `out` is for all of it.
        self._step, self._buckets, self._out = step, buckets, out.zero_()
        self._agreeing = any(bucket.agreeing for bucket in buckets)
        # Until the gradient is whole, where something must be known of all of it first.
        self._holds = self._agreeing or self._compressor.memory.needs_norm
        self._pushed: dict[int, Float[Tensor, " n"]] = {}
        self._released = 0
        self._held: list[Held] = []
        self._starting: list[Future[None]] = []
        self._finishing: list[Future[None]] = []
        self._encoding, self._receiving = Spans(), Spans()
        self._before_s = self._collective.wait_s

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._pushed[bucket.number] = flat
        if not self._holds:
            self._release()

    def average(self, report: Report) -> Exchanged:
        asked = time.perf_counter()
        settled = self.settle()
        told = replace(report, encode_s=settled.encode_s, wait_s=settled.wait_s)
        reports = tell(self._collective, self._step, told)
        busy = settled.busy
        return Exchanged(reports, settled.decode_s, busy.covered_s(), busy.covered_s(asked))

    def settle(self) -> Settled:
        """Waits until the mean of every bucket is there. Arguments and errors: `average`."""
        return self._settled(self._release_whole() if self._holds else 0.0)

    def come_to_rest(self) -> None:
        """Waits until nothing of a step that was interrupted is under way.

        Raises:
            CodecError: a codec cannot carry this rank's gradient.
        """
        wait([held.encoded for held in self._held])
        wait(self._starting)
        wait(self._finishing)
        for held in self._held:
            held.encoded.result()

    def repeat(self) -> Settled:
        """Exchanges anew what this rank has encoded for the step. Errors: those of `average`."""
        self._streams.join()
        self._out.zero_()
        self._finishing.clear()
        after = self._streams.after_current_stream
        self._held = [replace(held, place=after(held.device)) for held in self._held]
        self._starting = [self._sender.submit(self._start, held) for held in self._held]
        return self._settled(0.0)

    def take_back(self) -> None:
        """The step is never taken: the memory gets back what was encoded for it."""
        for held in self._held:
            self._reduction.take_back(held.bucket, held.encoded.result(), held.device)

    def _settled(self, agree_s: float) -> Settled:
        """Waits for what was begun, of which ranks agreed on scales for so long before."""
        for starting in self._starting:
            starting.result()
        for finishing in self._finishing:  # complete by now: each is begun by one of those
            finishing.result()
        self._streams.join()
        wait_s = self._collective.wait_s - self._before_s
        decode_s = self._receiving.total_s() - (wait_s - agree_s)
        busy = self._encoding | self._receiving
        return Settled(self._encoding.total_s(), decode_s, wait_s, busy)

    def _release(self) -> None:
        """Encodes the buckets whose turn it is."""
        # The codec of this step may be another than when the gradients were laid out.
        for bucket in self._buckets[self._released :]:
            flat = self._pushed.get(bucket.number)
            if flat is None:
                return
            place = self._streams.after_current_stream(
                flat.device
            )  # while the device goes on with the pass
            encoded = self._encoders.submit(self._encode, place, bucket, flat)
            held = Held(bucket, encoded, place, flat.device)
            self._held.append(held)
            self._starting.append(self._sender.submit(self._start, held))
            self._released += 1

    def _release_whole(self) -> float:
        """Encodes a whole gradient, once what must be known of all of it is.

        Returns:
            The seconds that it waited for others.
        """
        norms = AsyncScalars(*(flat.norm() for flat in self._pushed.values())).values()
        self._compressor.memory.begin(math.hypot(*norms))
        if self._agreeing:
            self._agree()
        self._release()
        return self._collective.wait_s - self._before_s

    def _encode(self, place: Place, bucket: Bucket, flat: Float[Tensor, " n"]) -> Any:
        with self._encoding.busy(), place():
            return self._reduction.encode(bucket, flat, self._step)

    def _start(self, held: Held) -> None:
        encoded = held.encoded.result()
        with held.place():
            finish = self._reduction.start(held.bucket, encoded, self._step)
        finishing = self._receiver.submit(self._finish, held.place, held.bucket, finish)
        self._finishing.append(finishing)

    def _finish(self, place: Place, bucket: Bucket, finish: Finish) -> None:
        with self._receiving.busy(), place():
            mean = self._out[bucket.offset : bucket.offset + bucket.size]
            finish(mean)
            self._averaged(bucket, mean)

    def _agree(self) -> None:
        """Has all ranks encode with the same scales: the largest that any of them asks for."""
        asked: dict[str, float] = {}
        for bucket in self._buckets:
            asked |= self._compressor.propose(bucket, self._pushed[bucket.number])
        section = torch.tensor([*asked.values()], dtype=torch.float64)
        frames = gather(self._collective, Kind.SCALES, self._step, section, "the scales")
        scales = [read_scales(frame, len(asked)) for frame in frames]
        largest = map(max, zip(*scales, strict=True))
        self._compressor.agree(dict(zip(asked, largest, strict=True)))
