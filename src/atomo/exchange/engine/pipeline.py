"""The exchange of a step beside its backward pass.

Threads encode, one thread sends, and one thread receives and decodes. Buckets are exchanged in the
order of their numbers on all ranks, whatever the order in which a backward pass makes them.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.core.devices import AsyncScalars, SideStreams
from atomo.exchange.base import Communicator, Exchanged, Reduction
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor
from atomo.exchange.engine.busy_intervals import BusyIntervals
from atomo.exchange.engine.stages import StagePipeline, StageWork, Submission
from atomo.exchange.engine.threads import one_thread
from atomo.exchange.report import Report
from atomo.exchange.reports import gather, tell
from atomo.exchange.scales import adopt_largest, read_scales
from atomo.fusion import Bucket
from atomo.wire import Kind

__all__ = ["Averaged", "Pipeline", "Settled"]

Averaged = Callable[[Bucket, Float[Tensor, " n"]], None]
"""Takes a bucket and its mean."""
Place = Callable[[], AbstractContextManager[None]]
"""Has a block compute on the side stream of a device."""


@final
@dataclass(frozen=True)
class Settled:
    """The times of a step on this rank, once its mean is there."""

    encode_s: float
    decode_s: float
    wait_s: float  # for other ranks
    busy: BusyIntervals


@final
class PipelineStep:
    """The state that the buckets of a step share."""

    def __init__(
        self,
        number: int,
        reduction: Reduction[Any, Any],
        out: Float[Tensor, " n"],
        averaged: Averaged | None,
    ) -> None:
        self.number, self.reduction, self.out, self.averaged = number, reduction, out, averaged
        self.encoding, self.exchanging = BusyIntervals(), BusyIntervals()


@final
@dataclass(frozen=True)
class BucketWork(StageWork[Any, Any]):
    """A bucket in the stages of a step."""

    step: PipelineStep
    bucket: Bucket
    flat: Float[Tensor, " n"]
    """Its gradient, which is scratch space."""
    place: Place

    def encode(self) -> Any:
        step = self.step
        with step.encoding.busy(), self.place():
            return step.reduction.encode(self.bucket, self.flat, step.number)

    def exchange(self, encoded: Any) -> Any:
        step = self.step
        with step.exchanging.busy(), self.place():
            return step.reduction.exchange(self.bucket, encoded, step.number)

    def decode(self, received: Any) -> None:
        step, bucket = self.step, self.bucket
        with step.exchanging.busy(), self.place():
            mean = step.out[bucket.offset : bucket.offset + bucket.size]
            step.reduction.decode(bucket, received, step.number, mean)
            if step.averaged is not None:
                step.averaged(bucket, mean)


@final
class Pipeline(Communicator):
    """A communicator over all ranks of a collective, by one reduction."""

    def __init__(
        self,
        collective: Collective,
        compressor: Compressor,
        reduction: Reduction[Any, Any],
        threads: int = 1,
        averaged: Averaged | None = None,
    ) -> None:
        """Makes a communicator.

        Args:
            collective: connects the ranks.
            compressor: the one that `reduction` encodes with.
            reduction: how one bucket is averaged.
            threads: how many threads encode.
            averaged: gets each bucket with its mean, in their order, in the thread that decodes.
        """
        self._collective, self._compressor, self._reduction = collective, compressor, reduction
        self._averaged = averaged
        self._stages = StagePipeline(
            ThreadPoolExecutor(threads, "encode", one_thread),
            ThreadPoolExecutor(1, "exchange", one_thread),
            ThreadPoolExecutor(1, "decode", one_thread),
        )
        self._streams = SideStreams()

    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        # The buckets may be some of a gradient's; `out` is for all of it.
        self._buckets = buckets
        self._step = PipelineStep(step, self._reduction, out, self._averaged)
        self._agreeing = any(bucket.agreeing for bucket in buckets)
        # A norm or a scale of the whole gradient must be known before any of it is encoded.
        self._holds = self._agreeing or self._compressor.memory.needs_norm
        self._pushed: dict[int, Float[Tensor, " n"]] = {}
        self._submitted: list[Submission[Any, Any]] = []
        self._works: list[BucketWork] = []
        self._before_s = self._collective.wait_s

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._pushed[bucket.number] = flat
        if not self._holds:
            self._release()

    def average(self, report: Report) -> Exchanged:
        asked = time.perf_counter()
        settled = self.settle()
        full = replace(report, encode_s=settled.encode_s, wait_s=settled.wait_s)
        reports = tell(self._collective, self._step.number, full)
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
        wait([submission.encoded for submission in self._submitted])
        wait([submission.done for submission in self._submitted])
        for submission in self._submitted:
            submission.encoded.result()

    def repeat(self) -> Settled:
        """Exchanges anew what this rank has encoded for the step. Errors: those of `average`."""
        self._streams.join()
        after = self._streams.after_current_stream
        self._works = [replace(work, place=after(work.flat.device)) for work in self._works]
        for submission, work in zip(self._submitted, self._works, strict=True):
            self._stages.repeat(submission, work)
        return self._settled(0.0)

    def take_back(self) -> None:
        """Gives the memory what was encoded for the step, which is never taken."""
        for submission, work in zip(self._submitted, self._works, strict=True):
            encoded = submission.encoded.result()
            self._reduction.take_back(work.bucket, encoded, work.flat.device)

    def _settled(self, agree_s: float) -> Settled:
        """Waits for what was submitted.

        Args:
            agree_s: how long this rank waited before, for the scales of others.
        """
        for submission in self._submitted:  # what this rank cannot encode is told first
            submission.encoded.result()
        for submission in self._submitted:
            submission.done.result()
        self._streams.join()
        step, wait_s = self._step, self._collective.wait_s - self._before_s
        decode_s = step.exchanging.total_s() - (wait_s - agree_s)
        busy = step.encoding | step.exchanging
        return Settled(step.encoding.total_s(), decode_s, wait_s, busy)

    def _release(self) -> None:
        """Submits the buckets whose turn it is."""
        # The codec of this step may be another than when the gradients were laid out.
        for bucket in self._buckets[len(self._works) :]:
            flat = self._pushed.get(bucket.number)
            if flat is None:
                return
            place = self._streams.after_current_stream(
                flat.device
            )  # while the device goes on with the pass
            work = BucketWork(self._step, bucket, flat, place)
            self._works.append(work)
            self._submitted.append(self._stages.submit(work))

    def _release_whole(self) -> float:
        """Submits a whole gradient, once what must be known of all of it is.

        Returns:
            The seconds that it waited for other ranks.
        """
        norms = AsyncScalars(*(flat.norm() for flat in self._pushed.values())).values()
        self._compressor.memory.begin(math.hypot(*norms))
        if self._agreeing:
            self._agree()
        self._release()
        return self._collective.wait_s - self._before_s

    def _agree(self) -> None:
        """Has all ranks encode with the same scales, in one round for the whole gradient."""
        proposed: dict[str, float] = {}
        for bucket in self._buckets:
            proposed |= self._compressor.propose(bucket, self._pushed[bucket.number])
        section = torch.tensor([*proposed.values()], dtype=torch.float64)
        frames = gather(self._collective, Kind.SCALES, self._step.number, section, "the scales")
        scales = [read_scales(frame, len(proposed)) for frame in frames]
        adopt_largest(self._compressor, [*proposed], scales)
