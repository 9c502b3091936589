"""One rank's part in the averages of a step, in three stages: encode, exchange, decode."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, final

import torch
from torch import Tensor

from atomo.codecs.dense_fallback import DENSE
from atomo.communicators.acpsgd import ACPSGD
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor
from atomo.communicators.powersgd import PowerSGD
from atomo.devices import to_host
from atomo.integrations.chunk import Chunk, Codecs, bucket_of, spread, taken
from atomo.integrations.decay import NO_DECAY, Decay
from atomo.integrations.dense import NEVER, Dense
from atomo.integrations.means import decode_frames
from atomo.integrations.scales import agree
from atomo.integrations.sent import Scratch, Sent
from atomo.integrations.stats import Stats
from atomo.integrations.way import Way, way_of
from atomo.memory import NoMemory
from atomo.wire import Bytes

__all__ = ["Averager"]

ALL_STEP: Final = "has every rank registered its hook, ddp.register_comm_hook(state, hook)?"
Before = tuple[dict[str, Tensor], dict[str, Tensor]]  # memories, and a method's state
Within = Callable[[Callable[[], list[Bytes]]], list[Bytes]]


@final
class Averager:
    """Replaces gradients by their average over all ranks, bit for bit the same on each.

    Each chunk goes through `encode`, `exchange` and `decode`, with the same chunks in the same
    order on every rank. Each stage has one thread at a time; while a chunk is in one, the next may
    be in the stage before. A step is through all of them before the next one begins.

    After an error it is of no more use: the ranks are out of step. What `decode` finds wrong, all
    ranks find, once they have the chunk; they go on to exchange what is left of the step, lest one
    waits for another that has stopped.
    """

    def __init__(
        self,
        codecs: Codecs,
        compressor: Compressor,
        collective: Collective,
        skips: bool,
        method: PowerSGD | ACPSGD | None = None,
        dense: Dense = NEVER,
        decay: Decay = NO_DECAY,
        schedule: Sequence[tuple[int, Codecs]] = (),
    ) -> None:
        """An averager at step 0.

        Args:
            codecs: what encode.
            compressor: does it, with what this rank keeps back.
            collective: the group.
            skips: whether whoever asks for the averages leaves out a step with a gradient that is
                not finite; then all ranks get NaN, and every memory is as it was before the step.
            method: sums in rounds of its own what the codec stands for; None: frames are gathered.
            dense: in which steps all travels dense.
            decay: the weight decay that gradients get before the memory sees them.
            schedule: codecs that encode in the place of `codecs`, each from a step on, in order.
        """
        self.stats = Stats()
        self.step = 0
        self.memory, self.codecs, self.dense = compressor.memory, codecs, dense
        self.collective, self.method, self._decay = collective, method, decay
        self._at_first = way_of(Codecs(DENSE), compressor)
        later = [(0, codecs), *schedule]
        self._later = [(begin, way_of(one, compressor, method)) for begin, one in later]
        self._snapshots = skips and type(self.memory) is not NoMemory
        self._skips = skips
        self._before: Before | None = None
        self._looks: list[Tensor] = []  # whether averages of this step are finite
        self._held: list[tuple[Chunk, float]] = []  # until the norm of all is known
        self._scratch = Scratch()
        self._open = False  # whether a step has begun and more of it is to come
        self._failure: BaseException | None = None
        self._wrong: BaseException | None = None  # in what came of this step

    def encode(self, chunk: Chunk, scale: float, last: bool, within: Within) -> list[Sent]:
        """What this rank has to say: of this chunk, or of several at once, or of none yet.

        Args:
            chunk: some parameters' gradients.
            scale: what they were multiplied with; a memory holds them without it.
            last: whether it is the last one of this step.
            within: does something in the thread of `exchange`, behind what that has to do already.
        """
        if not self._open:
            self._failure = self._failure or self._wrong
        self._open = not last
        with self._stopping():
            if self._snapshots and self._before is None:
                # A gradient that spoils the step may be the last one to come.
                factors = self.method.state_dict() if self.method else {}
                self._before = self.memory.state_dict(), factors
            self._decay.add_to(chunk.gradients, scale)
            self._held.append((chunk, scale))
            if self.memory.needs_norm and not last:
                return []
            if self.memory.needs_norm:
                self._tell_norm()
            held, self._held = self._held, []
            return [self._encode(one, of, within) for one, of in held]

    def meet(self, _: object) -> None:
        """In the place of `exchange`, before the first one.

        Raises:
            DeadlineExpired: a rank has not come to its first step.
        """
        with self._stopping():
            self.collective.meet("first step", ALL_STEP)

    def exchange(self, sent: Sequence[Sent]) -> list[Sent]:
        """What all ranks have to say.

        Raises:
            TransportError: the others' part did not arrive.
        """
        with self._stopping():
            return [self._exchange(one) for one in sent]

    def decode(self, sent: Sequence[Sent], last: bool) -> None:
        """Replaces the gradients by their average, in place; with `last`, closes the step.

        Raises:
            NotFinite: a rank's gradient holds NaN or infinity, and steps are not skipped.
            CodecError: a rank cannot encode its gradient.
            FrameError: what a rank sent is no message about this bucket.
        """
        if self._wrong is not None:
            raise self._wrong
        try:
            for one in sent:
                self._decode(one)
            if last:
                self._close()
        except BaseException as error:
            self._wrong = error
            raise

    def end(self) -> None:
        """In the place of `encode`, behind chunks of which none was the last."""
        with self._stopping():
            self._open = False

    def close(self, _: object) -> None:
        """In the place of `decode`, at the end of such a step.

        Raises:
            AtomoError: as of `decode`.
        """
        self.decode([], True)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Raises for ever what was raised once."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    @property
    def _way(self) -> Way:
        """Of this step."""
        if self.dense.covers(self.step):
            return self._at_first
        return next(way for begin, way in reversed(self._later) if begin <= self.step)

    def _tell_norm(self) -> None:
        norms = [torch.linalg.vector_norm(g, dtype=torch.float32) / of
                 for chunk, of in self._held for g in chunk.gradients.values()]  # fmt: skip
        norm = float(torch.stack(norms).norm())
        if math.isfinite(norm):  # where it is not, the message says so
            self.memory.begin(norm)

    def _encode(self, chunk: Chunk, scale: float, within: Within) -> Sent:
        began = time.perf_counter()
        self.stats.dense_bytes += chunk.dense_bytes
        way = self._way
        bucket = bucket_of(chunk.number, chunk.parameters, way.codecs)
        if way.sums:
            row = chunk.joined(lambda: self._scratch.flat(chunk))
            return Sent(chunk, scale, bucket, row, ())
        flat = self._scratch.flat(chunk)
        reads = way.accepts_half and way.encoder.compressor.accepts_half(bucket, flat.device)
        given, peaks = taken(bucket, chunk, scale, flat, reads)
        if way.method:
            idle = frozenset(s.name for s, p in zip(bucket.slots, peaks, strict=True) if not p)
            held = way.method.encode(bucket, flat, self.step, idle)
            self.stats.sent_bytes += way.method.bytes_of(held, self.step)
            self.stats.encode_s += time.perf_counter() - began
            return Sent(chunk, scale, bucket, flat, (), held)
        if bucket.agreeing:
            what = f"the scales of step {self.step}"
            gather = self.collective.gather
            agree(bucket, given, way.encoder.compressor,
                  lambda mine: within(lambda: [*gather(mine, what)]))  # fmt: skip
        if way.chunked:
            said, coded = way.encoder.announced(peaks), None
        else:
            said, coded = way.encoder.encode(bucket, given, peaks, self.step)
        data = said if way.adds or way.chunked else way.encoder.framed(said, coded, self.step)
        self.stats.sent_bytes += data.size + (coded.nbytes if coded and way.adds else 0)
        self.stats.encode_s += time.perf_counter() - began
        return Sent(chunk, scale, bucket, flat, [data], coded=coded if way.adds else None)

    def _exchange(self, sent: Sent) -> Sent:
        began = time.perf_counter()
        sent, more = self._way.exchange(sent, self.collective, self.step, skips=self._skips)
        self.stats.sent_bytes += more
        self.stats.exchange_s += time.perf_counter() - began
        return sent

    def _decode(self, sent: Sent) -> None:
        began = time.perf_counter()
        chunk, flat, way = sent.chunk, sent.flat, self._way
        if not way.sums:
            if sent.said:
                decode_frames(sent, way.codecs, self.step, skips=self._skips)
            if sent.scale != 1:
                flat.mul_(sent.scale)
            spread(sent.bucket, flat, chunk.gradients)
        self.look(chunk)
        self.stats.decode_s += time.perf_counter() - began

    def _restore(self, memory: dict[str, Tensor], factors: dict[str, Tensor]) -> None:
        self.memory.load_state_dict(memory)
        if self.method:
            self.method.load_state_dict(factors)

    def look(self, chunk: Chunk) -> None:
        """Whether whoever looks at the averages will leave the step out: on all ranks."""
        # Half precision may overflow where what was gathered did not.
        if self._skips:
            wholes = [*chunk.gradients.values()] if chunk.whole is None else [chunk.whole]
            self._looks.append(torch.stack([one.isfinite().all() for one in wholes]).all())

    def _close(self) -> None:
        # Once for all chunks: each look at a device waits for it.
        spoilt = not all(bool(one) for one in to_host(self._looks))
        if spoilt:
            self.stats.skipped += 1
            if self._before is not None:
                self._restore(*self._before)
        self._before = None
        self._looks.clear()
        self._scratch.tidy()
        self.step += 1
        self.stats.steps += 1
