"""Chunks that all ranks agree on: they sum the norms of chunks, then the entries of the largest.

As Sun et al. do: a chunk is as large as the sum over ranks of its L1 norms, in what each rank would
send. All ranks then send the same chunks, so that these add up on their way, and neither bytes nor
decoding grow with the number of ranks. The norms travel as well: one for each chunk, so that longer
chunks cost less.

Sun et al., "Optimizing Network Performance for Distributed DNN Training on GPU Clusters:
ImageNet/AlexNet Training in 1.5 Minutes", 2019.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from atomo.codecs import Codec, Field, Granularity, Law
from atomo.codecs.dense_fallback import DENSE
from atomo.codecs.sparse.chunktopk import ChunkTopK
from atomo.codecs.sparse.payload import Sparse
from atomo.communicators.allreduce import add_mean, addends_of
from atomo.communicators.base import Finish, Reduction
from atomo.communicators.collective import Addend, Collective
from atomo.communicators.exchange import Compressor
from atomo.errors import ConfigError
from atomo.fusion import Bucket

__all__ = ["Chunked"]

NORM_BYTES: Final = 4  # half of what sums them up has
SumNorms = Callable[[Float[Tensor, " chunks"]], None]


@final
class Chunked(Reduction[Float[Tensor, " n"]]):
    """Two sums a bucket and step."""

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @staticmethod
    def fitted(codec: Codec[Any]) -> Codec[Any]:
        if isinstance(codec, ChunkTopK) or Law.LOSSLESS in codec.laws:
            return codec
        raise ConfigError(
            f"--comm-type Chunked sums the chunks that all ranks agree on, not {codec}; give "
            "--code 'chunktopk(ratio=0.01, chunk=256)', or sgd"
        )

    def encode(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> Float[Tensor, " n"]:
        """The gradient: what is sent of it is known once the others' norms are."""
        del bucket, step
        return flat

    def start(self, bucket: Bucket, encoded: Float[Tensor, " n"], step: int) -> Finish:
        def finish(out: Float[Tensor, " n"]) -> None:
            self.average(bucket, encoded, step, out)

        return finish

    def average(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, out: Float[Tensor, " n"]
    ) -> int:
        """Adds the mean of all ranks to `out`; the bytes that are summed."""
        what = f"bucket {bucket.number} of step {step}"
        agreed = self._agreeing(bucket, f"the norms of {what}")
        payloads = self._compressor.encode(agreed, flat, step)
        addends = addends_of(agreed, payloads, self._collective.size)
        self._collective.sum(addends, what)
        add_mean(agreed, payloads, addends, out, self._collective.size)
        norms = sum(
            part.codec.chunks(part.stop - part.start)
            for part in bucket.parts
            if isinstance(part.codec, ChunkTopK)
        )
        return NORM_BYTES * norms + sum(addend.values.nbytes for addend in addends)

    def _agreeing(self, bucket: Bucket, what: str) -> Bucket:
        """The bucket with codecs that ask all ranks, in the order of its parts."""

        def sum_norms(norms: Float[Tensor, " chunks"]) -> None:
            self._collective.sum([Addend(norms, DENSE)], what)

        parts = (
            replace(part, codec=Agreed(part.codec, sum_norms))
            if isinstance(part.codec, ChunkTopK)
            else part
            for part in bucket.parts
        )
        return replace(bucket, parts=tuple(parts))


@final
@dataclass(frozen=True)
class Agreed(Codec[Sparse]):
    """A `chunktopk` whose norms are summed over all ranks before it chooses."""

    own: ChunkTopK
    sum_norms: SumNorms

    id: ClassVar[str] = "chunktopk"
    default_payload_type: ClassVar[type[Sparse]] = Sparse
    sparsifies: ClassVar[bool] = True
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES

    @property
    def laws(self) -> frozenset[Law]:
        return self.own.laws | {Law.SUMMABLE}

    @property
    def wire_codec(self) -> Codec[Any]:
        return DENSE

    def encode(self, gradient: Float[Tensor, "..."], generator: torch.Generator) -> Sparse:
        del generator  # deterministic
        entries = gradient.reshape(-1)
        return self.own.take(entries, self._choose(entries, None))

    def encode_residual(
        self,
        gradient: Float[Tensor, "*s"],
        kept: Float[Tensor, "*s"],
        generator: torch.Generator,
    ) -> Sparse:
        del generator
        entries = kept.view(-1)
        payload = self.own.take(entries, self._choose(entries, gradient.reshape(-1)))
        self.own.clear_sent(payload, entries)
        return payload

    def _choose(
        self, entries: Float[Tensor, " n"], added: Float[Tensor, " n"] | None
    ) -> Int64[Tensor, " k"]:
        norms = self.own.norms(entries, added).float()  # NORM_BYTES each
        self.sum_norms(norms)
        return self.own.largest(norms, len(entries))  # on all ranks alike, in every bit

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return self.own.fields(shape)

    def add_decoded(self, payload: Sparse, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        self.own.add_decoded(payload, out, scale)

    def clear_sent(self, payload: Sparse, entries: Float[Tensor, " n"]) -> None:
        self.own.clear_sent(payload, entries)

    def addend(self, payload: Sparse) -> Float[Tensor, " k"]:
        values: Tensor = payload.values
        return values

    def add_summed(
        self,
        payload: Sparse,
        total: Float[Tensor, " k"],
        out: Float[Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        self.own.add_decoded(replace(payload, values=total), out, scale)
