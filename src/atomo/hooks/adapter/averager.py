"""The adapter between hooks and reductions: one rank's part in the averages of a step.

Hooks pass gradients of any strides and dtypes, in buckets that may change from step to step. The
averager makes flat gradients of them for a `Reduction`, and copies the means back. It also skips
steps with an average that is not finite, and counts bytes and seconds.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.core.devices import to_host
from atomo.errors import CodecError
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor
from atomo.exchange.engine.announcements import NotFinite
from atomo.exchange.reductions.low_rank import NotFiniteSum
from atomo.exchange.scales import agree_on_scales
from atomo.fusion import Bucket
from atomo.hooks.adapter.chunks import (
    NEVER,
    Chunk,
    Codecs,
    DensePolicy,
    InFlight,
    ScratchSpace,
    bucket_in_place,
    bucket_of,
    flat_gradient,
    usage_in,
    usage_of,
)
from atomo.hooks.optimizers.noise_meter import NoiseMeter
from atomo.hooks.optimizers.weight_decay import NO_DECAY, Decay
from atomo.memory import Memory

__all__ = ["Averager", "Encoding", "RunInExchange", "Stats", "StepSkipper"]

ALL_STEP: Final = "has every rank registered its hook, ddp.register_comm_hook(state, hook)?"
RunInExchange = Callable[[Callable[[], None]], None]
Encoding = tuple[Codecs, Reduction[Any, Any]]
"""The codecs of some steps, and the reduction of their payloads."""
Flat = tuple[Bucket, Float[Tensor, " n"], Float[Tensor, " n"], Usage]
Snapshot = tuple[dict[str, Tensor], dict[str, Tensor]]
"""States of the memory and of the reduction."""


@final
@dataclass
class Stats:
    """The costs of one rank, summed over all steps."""

    steps: int = 0
    skipped: int = 0  # steps with a gradient that was not finite, part of `steps`
    dense_bytes: int = 0  # of the uncompressed gradients
    sent_bytes: int = 0  # by this rank
    encode_s: float = 0.0  # memory and codec
    exchange_s: float = 0.0  # with the waits for other ranks
    decode_s: float = 0.0
    waited_s: float = 0.0  # in backward(), after the last gradient; lower => more overlap

    @property
    def ratio(self) -> float:
        """The bytes of the uncompressed gradients, divided by the sent bytes."""
        return self.dense_bytes / max(1, self.sent_bytes)


@final
class StepSkipper:
    """Restores the memory after a step with an average that is not finite.

    `begin` runs in the thread that encodes, `check` and `close` in the thread that decodes. The
    threads share the snapshot without a lock, since a step ends before the next step begins.
    """

    def __init__(self, memory: Memory, reduction: Reduction[Any, Any], skips: bool) -> None:
        """Makes a skipper before the first step.

        Args:
            memory: the memory of this rank.
            reduction: the reduction, which may have a state beside the memory.
            skips: True if steps with an average that is not finite are skipped.
        """
        self.skips = skips
        self._memory, self._reduction = memory, reduction
        self._snapshots = skips and bool(memory.vectors)
        self._before: Snapshot | None = None
        self._finite: list[Tensor] = []  # by chunk of this step: True if the average is finite

    def begin(self) -> None:
        """Takes a snapshot before the first chunk of a step, as any chunk may skip the step."""
        if self._snapshots and self._before is None:
            self._before = self._memory.state_dict(), self._reduction.state_dict()

    def check(self, chunk: Chunk) -> None:
        """Checks the averages of a chunk, in the dtype of its gradients, as the caller does."""
        # Half precision may overflow where the mean in float32 did not.
        if self.skips:
            wholes = [*chunk.gradients.values()] if chunk.whole is None else [chunk.whole]
            self._finite.append(torch.stack([whole.isfinite().all() for whole in wholes]).all())

    def close(self) -> bool:
        """Ends the step. Returns True if it is skipped: then the memory is as before the step."""
        # One read for all chunks: each read from a device waits for the device.
        skipped = not all(bool(finite) for finite in to_host(self._finite))
        if skipped and self._before is not None:
            memory, reduction = self._before
            self._memory.load_state_dict(memory)
            self._reduction.load_state_dict(reduction)
        self._before = None
        self._finite.clear()
        return skipped


@final
class Averager:
    """Replaces gradients by their average over all ranks, bit for bit the same on each rank.

    Each chunk passes `prepare`, `encode`, `exchange` and `decode`, with the same chunks in the same
    order on every rank. Each stage has one thread at a time. While a chunk is in one stage, the
    next chunk may be in the stage before. A step ends before the next step begins.

    The threads need no lock. Only the thread that encodes uses the memory and the decay. The thread
    that decodes the last chunk changes the number of the step, when no chunk is in another stage.

    After an error the averager cannot be used: the ranks are out of step. A decode error occurs on
    every rank. All ranks finish the exchange of the step before they raise it, so that no rank
    blocks.
    """

    def __init__(
        self,
        memory: Memory,
        collective: Collective,
        encodings: Sequence[tuple[int, Encoding]],
        compressor: Compressor,
        dense_first: Encoding,
        *,
        skips: bool,
        dense: DensePolicy = NEVER,
        decay: Decay = NO_DECAY,
    ) -> None:
        """Makes an averager at step 0.

        Args:
            memory: the memory of this rank.
            collective: connects the ranks.
            encodings: the encodings, each with its first step, in order; the first is from step 0.
            compressor: the compressor of all encodings.
            dense_first: the encoding of the first steps, if `dense` has dense steps.
            skips: True if a step with a gradient that is not finite is skipped; then all ranks get
                NaN, and every memory is as it was before the step.
            dense: the steps in which all parameters are dense.
            decay: the weight decay, added to gradients before the memory adds them.
        """
        self.stats, self.step = Stats(), 0
        self.memory, self.collective, self.dense = memory, collective, dense
        self._compressor, self._decay = compressor, decay
        self._dense_first, self._encodings = dense_first, encodings
        self.skipper = StepSkipper(memory, self.reduction, skips)
        self.meter: NoiseMeter | None = None
        """Meter of the noise of the codec, if the noise damps steps."""
        self._scratch = ScratchSpace()
        self._open = False  # True between the first and the last chunk of a step
        self._failure: BaseException | None = None
        self._decode_failure: BaseException | None = None  # of this step

    @property
    def codecs(self) -> Codecs:
        """The codecs that encode from step 0 on."""
        return self._encodings[0][1][0]

    @property
    def reduction(self) -> Reduction[Any, Any]:
        """The reduction of the payloads of these codecs."""
        return self._encodings[0][1][1]

    def prepare(self, chunk: Chunk, last: bool) -> Chunk:
        """Returns a chunk for `encode`, in the same thread.

        Args:
            chunk: gradients, which get the weight decay.
            last: True if it is the last chunk of this step.
        """
        if not self._open:
            self._failure = self._failure or self._decode_failure
        self._open = not last
        with self._stopping():
            self.skipper.begin()
            if self.meter is not None:
                self.meter.before(chunk, chunk.scale)
            self._decay.add_to(chunk.gradients, chunk.scale)
        return chunk

    def encode(self, chunks: Sequence[Chunk], run_in_exchange: RunInExchange) -> list[InFlight]:
        """Encodes chunks.

        Args:
            chunks: prepared chunks: all chunks of the step, if the memory needs the norm of the
                whole gradient.
            run_in_exchange: calls a function in the thread of `exchange`, after the work that is
                already in its queue.
        """
        with self._stopping():
            if chunks and self.memory.needs_norm:
                self._announce_norm(chunks)
            return [self._encode(chunk, run_in_exchange) for chunk in chunks]

    def meet(self) -> None:
        """Waits for all ranks, before the first exchange and in its thread.

        Raises:
            DeadlineExpired: a rank has not come to its first step.
        """
        with self._stopping():
            self.collective.meet("first step", ALL_STEP)

    def exchange(self, encoded: Sequence[InFlight]) -> list[InFlight]:
        """Exchanges chunks with other ranks.

        Raises:
            TransportError: a message of another rank did not arrive.
        """
        with self._stopping():
            return [self._exchange(chunk) for chunk in encoded]

    def decode(self, received: Sequence[InFlight], last: bool) -> None:
        """Replaces the gradients by their average, in place; with `last`, closes the step.

        Raises:
            NotFinite: a rank's gradient holds NaN or infinity, and steps are not skipped.
            CodecError: a rank cannot encode its gradient.
            FrameError: a received message is not about this bucket.
        """
        if self._decode_failure is not None:
            raise self._decode_failure
        try:
            for chunk in received:
                self._decode(chunk)
            if last:
                self._close()
        except BaseException as error:
            self._decode_failure = error
            raise

    def end(self) -> None:
        """Ends a step without a last chunk, in the thread of `encode`."""
        with self._stopping():
            self._open = False

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Raises an earlier error again, and records an error of its block."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    @property
    def _encoding(self) -> Encoding:
        """The codecs and the reduction of this step."""
        if self.dense.covers(self.step):
            return self._dense_first
        return next(e for begin, e in reversed(self._encodings) if begin <= self.step)

    def _announce_norm(self, chunks: Sequence[Chunk]) -> None:
        norms = [
            torch.linalg.vector_norm(gradient, dtype=torch.float32) / chunk.scale
            for chunk in chunks
            for gradient in chunk.gradients.values()
        ]
        norm = float(torch.stack(norms).norm())
        if math.isfinite(norm):  # else the announcement reports it
            self.memory.begin(norm)

    def _encode(self, chunk: Chunk, run_in_exchange: RunInExchange) -> InFlight:
        began = time.perf_counter()
        self.stats.dense_bytes += chunk.dense_bytes
        codecs, reduction = self._encoding
        bucket, flat, gradient, usage = self._flat(chunk, codecs, reduction)
        if bucket.agreeing:
            self._agree(bucket, gradient, run_in_exchange)
        encoded = reduction.encode(bucket, gradient, self.step, usage)
        self.stats.encode_s += time.perf_counter() - began
        return InFlight(chunk, bucket, flat, reduction, encoded)

    def _flat(self, chunk: Chunk, codecs: Codecs, reduction: Reduction[Any, Any]) -> Flat:
        """Returns a bucket, the tensor of its mean, and its gradient, in the same tensor or not."""
        bucket = bucket_of(chunk.number, chunk.parameters, codecs)
        if reduction.entrywise:
            flat = chunk.joined(lambda: self._scratch.flat(chunk))
            return bucket, flat, flat, ALL_USED
        in_place = bucket_in_place(chunk.number, chunk.parameters, codecs)
        if reduction.accepts_gaps and in_place is not None and chunk.lies_as(in_place):
            assert chunk.whole is not None
            return in_place, chunk.whole, chunk.whole, usage_in(in_place, chunk.whole)
        flat = self._scratch.flat(chunk)
        half = reduction.accepts_half and self._compressor.accepts_half(bucket, flat.device)
        gradient, peaks = flat_gradient(bucket, chunk, flat, half)
        return bucket, flat, gradient, usage_of(bucket, peaks)

    def _agree(self, bucket: Bucket, flat: Tensor, run_in_exchange: RunInExchange) -> None:
        """Has all ranks encode a bucket with the same scales. Errors: those of `agree_on_scales`.

        Each bucket has its own round, so that it does not wait for other buckets.
        """
        try:
            proposed = self._compressor.propose(bucket, flat)
        except CodecError:  # not finite: the announcement reports it
            proposed = {part.slots[0].name: 0.0 for part in bucket.agreeing}
        ranks, compressor, step = self.collective, self._compressor, self.step
        run_in_exchange(lambda: agree_on_scales(ranks, compressor, step, proposed))

    def _exchange(self, encoded: InFlight) -> InFlight:
        began, reduction = time.perf_counter(), encoded.reduction
        try:
            received = reduction.exchange(encoded.bucket, encoded.payload, self.step)
        except NotFiniteSum as error:  # on all ranks, at the same sum
            if not self.skipper.skips:
                raise NotFinite(str(error)) from error
            received, encoded = encoded.payload, replace(encoded, spoilt=True)
        self.stats.sent_bytes += reduction.sent_bytes(encoded.payload, received)
        self.stats.exchange_s += time.perf_counter() - began
        return encoded.followed_by(received)

    def _decode(self, received: InFlight) -> None:
        began = time.perf_counter()
        self._replace_by_mean(received)
        received.write_back()
        self.skipper.check(received.chunk)
        self.stats.decode_s += time.perf_counter() - began

    def _replace_by_mean(self, received: InFlight) -> None:
        """Replaces the scratch space by the mean, or by NaN if the step is to be skipped."""
        bucket, flat, reduction = received.bucket, received.flat, received.reduction
        spoilt = received.spoilt
        try:
            if not spoilt:
                reduction.decode(bucket, received.payload, self.step, flat)
        except NotFinite:
            if not self.skipper.skips:
                raise
            spoilt = True
        if spoilt:
            flat.fill_(math.nan)

    def _close(self) -> None:
        self.stats.skipped += self.skipper.close()
        self._scratch.tidy()
        self.step += 1
        self.stats.steps += 1
