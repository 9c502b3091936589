"""The exchange beside the backward pass: threads encode, one sends, and one receives and decodes.

Buckets are sent and received in the order of their numbers, so that all ranks exchange them in the
same order, whatever the order in which their backward passes make them.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.base import Communicator, Exchanged, Finish, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor
from atomo.communicators.report import Report
from atomo.communicators.scales import read_scales
from atomo.communicators.spans import Spans
from atomo.communicators.threads import one_thread
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = ["Pipeline"]

RAW: Final = Compression(codec="none")


@final
class Pipeline(Communicator):
    """A communicator over all ranks of a collective, by one way to reduce a bucket."""

    def __init__(
        self,
        collective: Collective,
        compressor: Compressor,
        reduction: Reduction[Any],
        threads: int = 1,
    ) -> None:
        """A communicator.

        Args:
            collective: connects the ranks.
            compressor: the one that `reduction` encodes with.
            reduction: how one bucket is averaged.
            threads: that encode.
        """
        self._collective, self._compressor, self._reduction = collective, compressor, reduction
        self._encoders = ThreadPoolExecutor(threads, "encode", one_thread)
        self._sender = ThreadPoolExecutor(1, "send", one_thread)
        self._receiver = ThreadPoolExecutor(1, "receive", one_thread)

    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        self._step, self._buckets, self._out = step, buckets, out.zero_()
        self._agreeing = any(bucket.agreeing for bucket in buckets)
        # Until the gradient is whole, where something must be known of all of it first.
        self._holds = self._agreeing or self._compressor.memory.needs_norm
        self._pushed: dict[int, Float[Tensor, " n"]] = {}
        self._released = 0
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
        agree_s = self._release_whole() if self._holds else 0.0
        for starting in self._starting:
            starting.result()
        for finishing in self._finishing:  # complete by now: each is begun by one of those
            finishing.result()
        wait_s = self._collective.wait_s - self._before_s
        encode_s = self._encoding.total_s()
        decode_s = self._receiving.total_s() - (wait_s - agree_s)
        reports = self._tell(replace(report, encode_s=encode_s, wait_s=wait_s))
        everything = self._encoding | self._receiving
        return Exchanged(reports, decode_s, everything.covered_s(), everything.covered_s(asked))

    def _release(self) -> None:
        """Encodes the buckets whose turn it is."""
        while (flat := self._pushed.get(self._released)) is not None:
            # The codec of this step may be another than when the gradients were laid out.
            bucket = self._buckets[self._released]
            encoded = self._encoders.submit(self._encode, bucket, flat)
            self._starting.append(self._sender.submit(self._start, bucket, encoded))
            self._released += 1

    def _release_whole(self) -> float:
        """Encodes a whole gradient, once what must be known of all of it is.

        Returns:
            The seconds that it waited for others.
        """
        norms = (float(flat.norm()) for flat in self._pushed.values())
        self._compressor.memory.begin(math.hypot(*norms))
        if self._agreeing:
            self._agree()
        self._release()
        return self._collective.wait_s - self._before_s

    def _encode(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> Any:
        with self._encoding.busy():
            return self._reduction.encode(bucket, flat, self._step)

    def _start(self, bucket: Bucket, encoded: Future[Any]) -> None:
        finish = self._reduction.start(bucket, encoded.result(), self._step)
        self._finishing.append(self._receiver.submit(self._finish, bucket, finish))

    def _finish(self, bucket: Bucket, finish: Finish) -> None:
        with self._receiving.busy():
            finish(self._out[bucket.offset : bucket.offset + bucket.size])

    def _agree(self) -> None:
        """Has all ranks encode with the same scales: the largest that any of them asks for."""
        asked: dict[str, float] = {}
        for bucket in self._buckets:
            asked |= self._compressor.propose(bucket, self._pushed[bucket.number])
        section = torch.tensor([*asked.values()], dtype=torch.float64)
        frames = self._gather(Kind.SCALES, section, "the scales")
        scales = [read_scales(frame, len(asked)) for frame in frames]
        largest = map(max, zip(*scales, strict=True))
        self._compressor.agree(dict(zip(asked, largest, strict=True)))

    def _tell(self, report: Report) -> dict[int, Report]:
        """The reports of all ranks."""
        frames = self._gather(Kind.REPORT, report.tensor(), "the report")
        return {
            rank: Report.of(unpack(frame, [Report.field()])[0]) for rank, frame in enumerate(frames)
        }

    def _gather(self, kind: Kind, section: Tensor, what: str) -> list[Bytes]:
        """A frame of every rank, of this step."""
        frame = pack(Header(kind, self._step, self._collective.rank + 1), [section], RAW)
        frames = list(self._collective.gather(frame, f"{what} of step {self._step}"))
        for rank, frame in enumerate(frames):
            header = read_header(frame)
            if header != Header(kind, self._step, rank + 1):
                raise FrameError(
                    f"rank {rank} sent {header.kind.name} of step {header.step} where {what} of "
                    f"step {self._step} was expected"
                )
        return frames
