"""All-reduce: payloads are summed before decoding, and the sum is decoded once.

A rank sends and receives twice the bytes of a payload, for any number of ranks. The codec must have
payloads that can be summed (`Law.SUMMABLE`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import CODECS, Codec, Law, make_codec
from atomo.codecs.dense_fallback import DENSE
from atomo.errors import ConfigError
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.exchange.compressor import Compressor, finish, gradient_of
from atomo.exchange.engine.announcements import (
    Announced,
    add_subset,
    all_encoded,
    encode_used,
    read_announcements,
)
from atomo.exchange.reductions.allgather import AnnouncedAllgather
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["Allreduce", "AnnouncedAllreduce", "DenseAllreduce", "add_mean", "addends_of"]


@final
@dataclass(frozen=True)
class Summed:
    """The sums over all ranks of the payloads of a bucket."""

    part: Bucket
    """The parameters that are summed."""
    payloads: Sequence[Any]
    """The payloads of this rank, one for each part."""
    addends: Sequence[Addend]
    """The addends that are summed, one for each part."""


@final
class AnnouncedAllreduce(Reduction[Announced[list[Any]], "Summed | Sequence[Bytes] | None"]):
    """Sums of payloads, after announcements that all ranks used the same parameters.

    Payloads of different parameters cannot be summed: then all ranks gather frames.
    """

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor
        self._frames = AnnouncedAllgather(collective, compressor)

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return codec_that_adds(codec)

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Announced[list[Any]]:
        return encode_used(bucket, flat, step, usage, self._compressor)

    def exchange(
        self, bucket: Bucket, encoded: Announced[list[Any]], step: int
    ) -> "Summed | Sequence[Bytes] | None":
        label = f"bucket {bucket.number} of step {step}"
        messages = [*self._collective.gather(encoded.announcement, label)]
        announcements = read_announcements(messages, bucket)
        if not all_encoded(announcements):
            return messages  # `decode` raises the reason
        if any(a.marked != announcements[0].marked for a in announcements):
            message = self._frames.message(encoded, step)
            return [*self._collective.gather(message, f"the frame of {label}")]
        if encoded.encoded is None:
            return None
        part, payloads = encoded.part, encoded.encoded
        addends = addends_of(part, payloads, self._collective.size)
        self._collective.sum(addends, f"the sum of {label}")
        return Summed(part, payloads, addends)

    def decode(
        self,
        bucket: Bucket,
        received: "Summed | Sequence[Bytes] | None",
        step: int,
        out: Float[Tensor, " n"],
    ) -> None:
        if received is None:  # no rank used any of it
            out.zero_()
        elif isinstance(received, Summed):
            add_sums(bucket, received, out, self._collective.size)
        else:
            self._frames.decode(bucket, received, step, out)

    def sent_bytes(
        self, encoded: Announced[list[Any]], received: "Summed | Sequence[Bytes] | None"
    ) -> int:
        del received
        return encoded.announcement.size + payload_bytes(encoded.part, encoded.encoded or ())


@final
class Allreduce(Reduction[list[Any], Summed]):
    """Sums of payloads."""

    announced: ClassVar[type[Reduction[Any, Any]] | None] = AnnouncedAllreduce

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return codec_that_adds(codec)

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> list[Any]:
        """Returns the payload of each part."""
        del usage
        return self._compressor.encode(bucket, flat, step)

    def exchange(self, bucket: Bucket, encoded: list[Any], step: int) -> Summed:
        collective = self._collective
        addends = addends_of(bucket, encoded, collective.size, copy=collective.may_repeat)
        if collective.shares:
            share = collective.shares[collective.rank]
            for addend in addends:
                addend.values.mul_(collective.size * share)
        collective.sum(addends, f"bucket {bucket.number} of step {step}")
        return Summed(bucket, encoded, addends)

    def decode(self, bucket: Bucket, received: Summed, step: int, out: Float[Tensor, " n"]) -> None:
        del step
        add_sums(bucket, received, out, self._collective.size)

    def sent_bytes(self, encoded: list[Any], received: Summed) -> int:
        return payload_bytes(received.part, encoded)

    def take_back(self, bucket: Bucket, encoded: list[Any], device: torch.device) -> None:
        sent = torch.zeros(bucket.size, device=device)
        for part, payload in zip(bucket.parts, encoded, strict=True):
            part.codec.add_decoded(payload, gradient_of(part, sent))
        self._compressor.keep(bucket, sent)


@final
class DenseAllreduce(Reduction[Tensor, Tensor]):
    """Sums of uncompressed float32 gradients, without a codec or a memory."""

    accepts_half: ClassVar[bool] = False
    entrywise: ClassVar[bool] = True

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        del compressor
        self._collective = collective

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return codec

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Tensor:
        del bucket, step, usage
        return flat.mul_(1 / self._collective.size)  # as DDP does: a division has other bits

    def exchange(self, bucket: Bucket, encoded: Tensor, step: int) -> Tensor:
        label = f"bucket {bucket.number} of step {step}"
        self._collective.sum([Addend(encoded, DENSE)], label)
        return encoded

    def decode(self, bucket: Bucket, received: Tensor, step: int, out: Float[Tensor, " n"]) -> None:
        del bucket, step
        if received is not out:
            out.copy_(received)

    def sent_bytes(self, encoded: Tensor, received: Tensor) -> int:
        del received
        return encoded.nbytes


def codec_that_adds(codec: Codec[Any]) -> Codec[Any]:
    """Returns the codec. Raises ConfigError if its payloads cannot be summed."""
    if Law.SUMMABLE not in codec.laws:
        raise ConfigError(
            f"--comm-type Allreduce sums payloads before decoding, and those of {codec} do not add "
            f"up; give --comm-type Allgather, or a codec with payloads that do: {summable()}"
        )
    return codec


def payload_bytes(bucket: Bucket, payloads: Sequence[Any]) -> int:
    """Returns the bytes of the payloads of a bucket; 0 without payloads."""
    pairs = zip(bucket.parts, payloads, strict=False)
    return sum(tensor.nbytes for part, payload in pairs for tensor in part.codec.sections(payload))


def add_sums(bucket: Bucket, summed: Summed, out: Float[Tensor, " n"], ranks: int) -> None:
    """Replaces `out` by the mean, after the addends were summed."""
    part, payloads = summed.part, summed.payloads
    addends = [apart(addend, out) for addend in summed.addends]
    out.zero_()
    mean = out if part is bucket else out.new_zeros(part.size)
    add_mean(part, payloads, addends, mean, ranks)
    if part is not bucket:
        add_subset(bucket, part, mean, out)
    finish(bucket, out)


def apart(addend: Addend, flat: Tensor) -> Addend:
    """Returns an addend that shares no memory with `flat`, which becomes the mean."""
    same = addend.values.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    return replace(addend, values=addend.values.clone()) if same else addend


def addends_of(
    bucket: Bucket, payloads: Sequence[Any], ranks: int, *, copy: bool = False
) -> list[Addend]:
    """Returns the summable values of each payload, scaled so that no sum overflows.

    Args:
        bucket: the bucket.
        payloads: the payloads of its parts.
        ranks: the number of ranks that are summed.
        copy: True if the payloads must not change, as they may be summed again.
    """
    addends = []
    for part, payload in zip(bucket.parts, payloads, strict=True):
        values, carrier = part.codec.addend(payload), part.codec.wire_codec
        if copy:
            values = values.clone()
        smaller = shrinkage(carrier, ranks)
        addends.append(Addend(values if smaller == 1 else values.mul_(smaller), carrier))
    return addends


def add_mean(
    bucket: Bucket,
    payloads: Sequence[Any],
    addends: Sequence[Addend],
    out: Float[Tensor, " n"],
    ranks: int,
) -> None:
    """Adds the mean of all ranks to `out`, in place, after the addends were summed."""
    for part, payload, addend in zip(bucket.parts, payloads, addends, strict=True):
        share = 1 / (ranks * shrinkage(addend.wire_codec, ranks))
        part.codec.add_summed(payload, addend.values, gradient_of(part, out), share)


def shrinkage(carrier: Codec[Any], ranks: int) -> float:
    """Returns the factor on addends that keeps their sum from an overflow.

    With a wire codec that rounds, it is a power of two, which changes no bit of a mantissa. In
    float32 it is 1: a sum that overflows there is infinite in plain SGD too.
    """
    return 1.0 if Law.LOSSLESS in carrier.laws else 2.0 ** -(ranks - 1).bit_length()


def summable() -> str:
    """Names the codecs with payloads that can be summed, on their defaults."""
    return ", ".join(name for name in CODECS if Law.SUMMABLE in make_codec(name).laws)
