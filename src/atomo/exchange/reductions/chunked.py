"""Chunks that all ranks agree on: they sum the norms of chunks, then the largest chunks.

As in Sun et al., the norm of a chunk is the sum over ranks of the L1 norms of its gradient plus
residual. All ranks then send the same chunks, so that these can be summed before decoding, and
neither bytes nor decoding time grow with the number of ranks. Each chunk also costs one norm on the
wire, so longer chunks cost less.

Sun et al., "Optimizing Network Performance for Distributed DNN Training on GPU Clusters:
ImageNet/AlexNet Training in 1.5 Minutes", 2019.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from atomo.codecs import Codec, Field, Granularity, Law, make_codec
from atomo.codecs.dense_fallback import DENSE
from atomo.codecs.sparse.chunktopk import ChunkTopK
from atomo.codecs.sparse.payload import Sparse
from atomo.errors import ConfigError
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.exchange.compressor import Compressor
from atomo.exchange.engine.announcements import (
    Announced,
    add_subset,
    all_encoded,
    announce,
    check_encoded,
    cut_out,
    read_announcements,
)
from atomo.exchange.reductions.allreduce import add_mean, addends_of
from atomo.fusion import Bucket
from atomo.fusion.buckets import subset
from atomo.wire import Bytes

__all__ = ["AnnouncedChunked", "Chunked"]

NORM_BYTES: Final = 4  # half of what sums them up has
SumNorms = Callable[[Float[Tensor, " chunks"]], None]


@final
@dataclass(frozen=True)
class SummedChunks:
    """The sums over all ranks of the chunks of a bucket."""

    part: Bucket
    """The parameters with summed chunks, and with codecs that sum their norms over all ranks."""
    payloads: Sequence[Any]
    addends: Sequence[Addend]

    @property
    def nbytes(self) -> int:
        """The summed bytes, with those of the norms."""
        chunks = sum(
            part.codec.own.chunks(part.stop - part.start)
            for part in self.part.parts
            if isinstance(part.codec, Agreed)
        )
        return NORM_BYTES * chunks + sum(addend.values.nbytes for addend in self.addends)


@final
class AnnouncedChunked(
    Reduction[Announced[Float[Tensor, " n"]], "SummedChunks | Sequence[Bytes] | None"]
):
    """Sums of the chunks of all parameters that any rank used.

    Every rank sends chunks of these parameters, from its gradient plus residual.
    """

    accepts_half: ClassVar[bool] = False

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor
        self._chunks = Chunked(collective, compressor)

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return Chunked.adapt_codec(codec)

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Announced[Float[Tensor, " n"]]:
        del step
        announcement, _ = announce(bucket, usage, self._compressor)
        return Announced(announcement, bucket, flat, flat.device)

    def exchange(
        self, bucket: Bucket, encoded: Announced[Float[Tensor, " n"]], step: int
    ) -> "SummedChunks | Sequence[Bytes] | None":
        label = f"bucket {bucket.number} of step {step}"
        messages = [*self._collective.gather(encoded.announcement, label)]
        announcements = read_announcements(messages, bucket)
        if not all_encoded(announcements):
            return messages  # `decode` raises the reason
        used = tuple(
            map(any, zip(*(announcement.marked for announcement in announcements), strict=True))
        )
        if not any(used) or encoded.encoded is None:
            return None
        part = subset(bucket, used)
        return self._chunks.exchange(part, cut_out(bucket, part, encoded.encoded), step)

    def decode(
        self,
        bucket: Bucket,
        received: "SummedChunks | Sequence[Bytes] | None",
        step: int,
        out: Float[Tensor, " n"],
    ) -> None:
        if isinstance(received, SummedChunks):
            mean = out.new_empty(received.part.size)  # payloads may be views of `out`
            self._chunks.decode(bucket, received, step, mean)
            add_subset(bucket, received.part, mean, out.zero_())
            return
        check_encoded(read_announcements(received or (), bucket), bucket)
        out.zero_()  # no rank used any of it

    def sent_bytes(
        self,
        encoded: Announced[Float[Tensor, " n"]],
        received: "SummedChunks | Sequence[Bytes] | None",
    ) -> int:
        chunks = received.nbytes if isinstance(received, SummedChunks) else 0
        return encoded.announcement.size + chunks


@final
class Chunked(Reduction[Float[Tensor, " n"], SummedChunks]):
    """Two sums for each bucket and step."""

    announced: ClassVar[type[Reduction[Any, Any]] | None] = AnnouncedChunked
    is_code: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = False

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        if isinstance(codec, ChunkTopK) or Law.LOSSLESS in codec.laws:
            return codec
        raise ConfigError(
            f"--comm-type Chunked sums the chunks that all ranks agree on, not {codec}; give "
            "--code 'chunktopk(ratio=0.01, chunk=256)', or sgd"
        )

    @classmethod
    def codec_for(cls, code: str) -> Codec[Any]:
        """Returns the `chunktopk` with the settings of a code."""
        name, bracket, settings = code.partition("(")
        try:
            codec = make_codec(f"{ChunkTopK.id}{bracket}{settings}")
        except ConfigError as error:
            own = name.strip().lower()
            raise ConfigError(str(error).replace(ChunkTopK.id, own)) from error
        return cls.adapt_codec(codec)

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Float[Tensor, " n"]:
        """Returns the gradient: the sent chunks are known after the sum of norms, in `exchange`."""
        del bucket, step, usage
        return flat

    def exchange(self, bucket: Bucket, encoded: Float[Tensor, " n"], step: int) -> SummedChunks:
        label = f"bucket {bucket.number} of step {step}"
        agreed = self._agreeing(bucket, f"the norms of {label}")
        payloads = self._compressor.encode(agreed, encoded, step)
        addends = addends_of(agreed, payloads, self._collective.size)
        self._collective.sum(addends, label)
        return SummedChunks(agreed, payloads, addends)

    def decode(
        self, bucket: Bucket, received: SummedChunks, step: int, out: Float[Tensor, " n"]
    ) -> None:
        del bucket, step
        part, addends = received.part, received.addends
        add_mean(part, received.payloads, addends, out.zero_(), self._collective.size)

    def sent_bytes(self, encoded: Float[Tensor, " n"], received: SummedChunks) -> int:
        del encoded
        return received.nbytes

    def _agreeing(self, bucket: Bucket, label: str) -> Bucket:
        """Returns the bucket with codecs that sum their norms over all ranks."""

        def sum_norms(norms: Float[Tensor, " chunks"]) -> None:
            self._collective.sum([Addend(norms, DENSE)], label)

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
    """A `chunktopk` that sums the norms over all ranks before it chooses chunks."""

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
