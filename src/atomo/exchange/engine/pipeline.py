"""The exchange of a step beside its backward pass.

Threads encode, one thread sends, and one thread receives and decodes. Buckets are exchanged in the
order of their numbers on all ranks; the backward pass may complete them in another order.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from atomo.core.devices import SideStreams
from atomo.exchange.base import Communicator, Exchanged, Reduction
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor
from atomo.exchange.engine.busy_intervals import BusyIntervals
from atomo.exchange.engine.stages import (
    HeldGradients,
    StagePipeline,
    StageWork,
    Submission,
    one_thread,
)
from atomo.exchange.report import Report
from atomo.exchange.reports import tell
from atomo.exchange.scales import agree_on_scales
from atomo.fusion import Bucket

__all__ = ["Averaged", "Pipeline", "Settled"]

Averaged = Callable[[Bucket, Float[Tensor, " n"]], None]
"""Takes a bucket and its mean."""
EncodeContext = Callable[[], AbstractContextManager[None]]
"""Returns a context in which a block computes on the side stream of a device."""


@final
@dataclass(frozen=True)
class Settled:
    """Times of a completed step on this rank."""

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
    context: EncodeContext

    def encode(self) -> Any:
        step = self.step
        with step.encoding.busy(), self.context():
            return step.reduction.encode(self.bucket, self.flat, step.number)

    def exchange(self, encoded: Any) -> Any:
        step = self.step
        with step.exchanging.busy(), self.context():
            return step.reduction.exchange(self.bucket, encoded, step.number)

    def decode(self, received: Any) -> None:
        step, bucket = self.step, self.bucket
        with step.exchanging.busy(), self.context():
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
        """Creates a communicator.

        Args:
            collective: connects the ranks.
            compressor: the compressor of `reduction`.
            reduction: averages one bucket.
            threads: number of threads that encode.
            averaged: called with each bucket and its mean, in order, in the thread that decodes.
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
        # `buckets` may be a part of the gradient; `out` is the whole gradient.
        self._buckets = buckets
        self._step = PipelineStep(step, self._reduction, out, self._averaged)
        self._agreeing = any(bucket.agreeing for bucket in buckets)
        # A norm or a scale of the whole gradient must be known before any of it is encoded.
        holds = self._agreeing or self._compressor.memory.needs_norm
        self._held: HeldGradients[tuple[int, Float[Tensor, " n"]]] = HeldGradients(holds)
        self._pushed: dict[int, Float[Tensor, " n"]] = {}
        self._submitted: list[Submission[Any, Any]] = []
        self._works: list[BucketWork] = []
        self._wait_before_s = self._collective.wait_s

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._pushed.update(self._held.push((bucket.number, flat)))
        self._release()

    def average(self, report: Report) -> Exchanged:
        call_time = time.perf_counter()
        settled = self.settle()
        full = replace(report, encode_s=settled.encode_s, wait_s=settled.wait_s)
        reports = tell(self._collective, self._step.number, full)
        busy = settled.busy
        return Exchanged(reports, settled.decode_s, busy.covered_s(), busy.covered_s(call_time))

    def settle(self) -> Settled:
        """Waits for the mean of every bucket. Arguments and errors as of `average`."""
        return self._settled(self._release_whole() if self._held.holds else 0.0)

    def come_to_rest(self) -> None:
        """Waits until no work of an interrupted step is in progress.

        Raises:
            CodecError: a codec cannot encode this rank's gradient.
        """
        wait([submission.encoded for submission in self._submitted])
        wait([submission.done for submission in self._submitted])
        for submission in self._submitted:
            submission.encoded.result()

    def repeat(self) -> Settled:
        """Exchanges the encoded buckets of the step again. Errors as of `average`."""
        self._streams.join()
        after = self._streams.after_current_stream
        self._works = [replace(work, context=after(work.flat.device)) for work in self._works]
        for submission, work in zip(self._submitted, self._works, strict=True):
            self._stages.repeat(submission, work)
        return self._settled(0.0)

    def take_back(self) -> None:
        """Gives the encoded buckets of an abandoned step back to the memory."""
        for submission, work in zip(self._submitted, self._works, strict=True):
            encoded = submission.encoded.result()
            self._reduction.take_back(work.bucket, encoded, work.flat.device)

    def _settled(self, agree_s: float) -> Settled:
        """Waits for all submitted buckets.

        Args:
            agree_s: seconds that this rank already waited for agreed scales.
        """
        for submission in self._submitted:  # this rank's own errors are raised first
            submission.encoded.result()
        for submission in self._submitted:
            submission.done.result()
        self._streams.join()
        step, wait_s = self._step, self._collective.wait_s - self._wait_before_s
        decode_s = step.exchanging.total_s() - (wait_s - agree_s)
        busy = step.encoding | step.exchanging
        return Settled(step.encoding.total_s(), decode_s, wait_s, busy)

    def _release(self) -> None:
        """Submits the complete buckets, as far as all buckets before them are complete."""
        # `self._buckets` hold the codecs of this step; the pushed buckets may hold earlier codecs.
        for bucket in self._buckets[len(self._works) :]:
            flat = self._pushed.get(bucket.number)
            if flat is None:
                return
            # On a side stream, so that the device continues with the backward pass meanwhile.
            context = self._streams.after_current_stream(flat.device)
            work = BucketWork(self._step, bucket, flat, context)
            self._works.append(work)
            self._submitted.append(self._stages.submit(work))

    def _release_whole(self) -> float:
        """Computes the norm and the scales of a whole gradient, and submits its buckets.

        Returns:
            Seconds that this rank waited for other ranks.
        """
        self._pushed.update(self._held.release())
        self._compressor.begin(self._pushed.values())
        if self._agreeing:
            self._agree()
        self._release()
        return self._collective.wait_s - self._wait_before_s

    def _agree(self) -> None:
        """Agrees with all ranks on the scales, in one round for the whole gradient."""
        proposed: dict[str, float] = {}
        for bucket in self._buckets:
            proposed |= self._compressor.propose(bucket, self._pushed[bucket.number])
        agree_on_scales(self._collective, self._compressor, self._step.number, proposed)
