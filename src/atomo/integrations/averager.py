"""One rank's part in the averages of a step: encode, gather, decode, one bucket after the other."""

import math
import time
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec, Law
from atomo.codecs.small import DENSE
from atomo.communicators.collective import Addend, Collective
from atomo.communicators.exchange import Compressor
from atomo.errors import CodecError, FrameError
from atomo.fusion import Bucket
from atomo.integrations.chunk import Chunk, Parameters, bucket_of, collect, spread
from atomo.integrations.encoder import Encoder, NotFinite, mean_of
from atomo.integrations.stats import Stats
from atomo.memory import Forget, Memory
from atomo.wire import Compression

__all__ = ["Averager"]


@final
class Averager:
    """Replaces gradients by their average over all ranks, bit for bit the same on each.

    One thread at a time uses it, with the same chunks in the same order on every rank. Once it has
    raised an error it raises that for ever: the ranks are out of step.
    """

    def __init__(
        self,
        codec: Codec[Any],
        memory: Memory,
        collective: Collective,
        seed: int,
        compression: Compression,
        skips: bool,
    ) -> None:
        """An averager at step 0.

        Args:
            codec: what encodes.
            memory: what this rank keeps back.
            collective: the group.
            seed: of what is random; the same on all ranks.
            compression: of the frames.
            skips: whether whoever asks for the averages leaves out a step with a gradient that is
                not finite; then all ranks get NaN, and every memory is as it was before the step.
        """
        self.stats = Stats()
        self.step = 0
        self.memory, self.codec, self.collective = memory, codec, collective
        # Nothing is dropped and nothing kept: what is sent may be added on its way.
        self._sums = Law.LOSSLESS in codec.laws and type(memory) is Forget
        compressor = Compressor(memory, compression, collective.rank, seed)
        remembers = type(memory) is not Forget
        self._encoder = Encoder(codec, compressor, remembers)
        self._snapshots = skips and remembers
        self._skips = skips
        self._before: dict[str, Tensor] | None = None
        self._spoilt = False  # this step
        self._held: list[tuple[Chunk, float]] = []  # until the norm of all is known
        self._flats: dict[Parameters, Tensor] = {}
        self._served: set[Parameters] = set()
        self._failure: BaseException | None = None

    def average(self, chunk: Chunk, scale: float, last: bool) -> None:
        """Averages the gradients of a chunk, in place; with `last`, closes the step.

        Args:
            chunk: some parameters' gradients.
            scale: what they were multiplied with; a memory holds them without it.
            last: whether it is the last one of this step.

        Raises:
            NotFinite: a rank's gradient holds NaN or infinity, and steps are not skipped.
            CodecError: a rank cannot encode its gradient.
            TransportError: the others' part did not arrive.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._average(chunk, scale, last)
        except BaseException as error:
            self._failure = error
            raise

    def _average(self, chunk: Chunk, scale: float, last: bool) -> None:
        if self._snapshots and self._before is None:
            # A gradient that spoils the step may be the last one to come.
            self._before = self.memory.state_dict()
        self._held.append((chunk, scale))
        if self.memory.needs_norm and not last:
            return
        if self.memory.needs_norm:
            self._tell_norm()
        for held, of in self._held:
            self._one(held, of)
        self._held.clear()
        if last:
            self._close()

    def _tell_norm(self) -> None:
        norms = [torch.linalg.vector_norm(g.float()) / of
                 for chunk, of in self._held for g in chunk.gradients.values()]  # fmt: skip
        norm = float(torch.stack(norms).norm())
        if math.isfinite(norm):  # where it is not, the message says so
            self.memory.begin(norm)

    def _one(self, chunk: Chunk, scale: float) -> None:
        self.stats.dense_bytes += chunk.dense_bytes
        if self._sums:
            self._sum(chunk)
            return
        parameters = chunk.parameters
        bucket = bucket_of(chunk.number, parameters, self.codec)
        flat = self._flat(parameters, chunk)
        collect(bucket, chunk.gradients, flat)
        if scale != 1:
            flat.div_(scale)
        self._exchange(bucket, flat)
        if scale != 1:
            flat.mul_(scale)
        spread(bucket, flat, chunk.gradients)
        self._look(chunk)

    def _exchange(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """From this rank's gradient to the mean, in place."""
        began = time.perf_counter()
        if bucket.agreeing:
            self._agree(bucket, flat)
        data = self._encoder.message(bucket, flat, self.step)
        encoded = time.perf_counter()
        answers = [*self.collective.gather(data, f"bucket {bucket.number} of step {self.step}")]
        gathered = time.perf_counter()
        try:
            mean_of(answers, bucket, self.codec, self.step, flat)
        except NotFinite:
            if not self._skips:
                raise
            flat.fill_(math.nan)
        self.stats.sent_bytes += data.size
        self.stats.encode_s += encoded - began
        self.stats.exchange_s += gathered - encoded
        self.stats.decode_s += time.perf_counter() - gathered

    def _agree(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """The largest scale that any rank asks for, for each part that needs one."""
        names = [part.slots[0].name for part in bucket.agreeing]
        try:
            asked = self._encoder.compressor.propose(bucket, flat)
        except CodecError:  # not finite: the message says so
            asked = dict.fromkeys(names, 0.0)
        mine = np.array([asked[name] for name in names], np.float64)
        given = self.collective.gather(mine.view(np.uint8), f"the scales of step {self.step}")
        answers = [one.view(np.float64) for one in given]
        if any(one.shape != mine.shape or not np.isfinite(one).all() for one in answers):
            raise FrameError(f"{len(names)} finite scales were expected of each rank")
        scales = np.stack(answers).max(0).tolist()
        self._encoder.compressor.agree(dict(zip(names, scales, strict=True)))

    def _sum(self, chunk: Chunk) -> None:
        began = time.perf_counter()
        whole = chunk.joined()
        flat = whole.float()
        flat.mul_(1 / self.collective.size)  # as DDP does: a division has other bits
        what = f"bucket {chunk.number} of step {self.step}"
        self.collective.sum([Addend(flat, DENSE)], what)
        if flat is not whole:
            whole.copy_(flat)
        if whole is not chunk.whole:
            chunk.replace(whole)
        self.stats.sent_bytes += flat.nbytes
        self.stats.exchange_s += time.perf_counter() - began
        self._look(chunk)

    def _look(self, chunk: Chunk) -> None:
        """Whether whoever looks at the averages will leave the step out; all ranks find the same.

        Half precision may overflow where what was gathered did not.
        """
        if self._skips and not self._spoilt:
            wholes = chunk.gradients.values() if chunk.whole is None else [chunk.whole]
            self._spoilt = not all(bool(one.isfinite().all()) for one in wholes)

    def _close(self) -> None:
        if self._spoilt:
            self.stats.skipped += 1
            if self._before is not None:
                self.memory.load_state_dict(self._before)
        self._before, self._spoilt = None, False
        # Whose buckets have changed gets their room back.
        self._flats = {key: flat for key, flat in self._flats.items() if key in self._served}
        self._served.clear()
        self.step += 1
        self.stats.steps += 1

    def _flat(self, parameters: Parameters, chunk: Chunk) -> Float[Tensor, " n"]:
        self._served.add(parameters)
        if parameters not in self._flats:
            device = next(iter(chunk.gradients.values())).device
            size = sum(shape.numel() for _, shape in parameters)
            self._flats[parameters] = torch.empty(size, device=device)
        return self._flats[parameters]
