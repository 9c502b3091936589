"""All-reduce: payloads are added up on their way, and the sum is decoded once.

What a rank sends and receives does not grow with the number of ranks: twice a payload. That needs
payloads that add up (`Law.SUMMABLE`).
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import CODECS, Codec, Law, make_codec
from atomo.communicators.base import Finish, Reduction
from atomo.communicators.collective import Addend, Collective
from atomo.communicators.exchange import Compressor, finish, gradient_of
from atomo.errors import ConfigError
from atomo.fusion import Bucket

__all__ = ["Allreduce", "add_mean", "addends_of"]


@final
class Allreduce(Reduction[list[Any]]):
    """Sums of payloads."""

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @staticmethod
    def fitted(codec: Codec[Any]) -> Codec[Any]:
        if Law.SUMMABLE not in codec.laws:
            raise ConfigError(
                f"--comm-type Allreduce adds payloads up on their way, and those of {codec} do not "
                f"add up; give --comm-type Allgather, or one of which they do: {summable()}"
            )
        return codec

    def encode(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> list[Any]:
        """The payload of each part."""
        return self._compressor.encode(bucket, flat, step)

    def start(self, bucket: Bucket, encoded: list[Any], step: int) -> Finish:
        ranks, shares = self._collective.size, self._collective.shares
        addends = addends_of(bucket, encoded, ranks, copy=self._collective.may_repeat)
        if shares:
            for addend in addends:
                addend.values.mul_(ranks * shares[self._collective.rank])

        def add_sum(out: Float[Tensor, " n"]) -> None:
            self._collective.sum(addends, f"bucket {bucket.number} of step {step}")
            add_mean(bucket, encoded, addends, out, ranks)
            finish(bucket, out)

        return add_sum

    def take_back(self, bucket: Bucket, encoded: list[Any], device: torch.device) -> None:
        sent = torch.zeros(bucket.size, device=device)
        for part, payload in zip(bucket.parts, encoded, strict=True):
            part.codec.add_decoded(payload, gradient_of(part, sent))
        self._compressor.keep(bucket, sent)


def addends_of(
    bucket: Bucket, payloads: Sequence[Any], ranks: int, *, copy: bool = False
) -> list[Addend]:
    """What of the payloads of a bucket adds up, so much smaller that no sum leaves its carrier.

    Args:
        bucket: whose.
        payloads: of its parts.
        ranks: how many are summed.
        copy: whether payloads must stay what they are, as they may be summed again.
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
    """Adds the mean of all ranks to `out`, in place, once the addends are sums."""
    for part, payload, addend in zip(bucket.parts, payloads, addends, strict=True):
        share = 1 / (ranks * shrinkage(addend.carrier, ranks))
        part.codec.add_summed(payload, addend.values, gradient_of(part, out), share)


def shrinkage(carrier: Codec[Any], ranks: int) -> float:
    """What addends are multiplied with: where the carrier rounds, a power of two, which changes no
    bit of theirs. A float32 sum that overflows is as infinite as plain SGD's.
    """
    return 1.0 if Law.LOSSLESS in carrier.laws else 2.0 ** -(ranks - 1).bit_length()


def summable() -> str:
    """The codecs that go with it on their defaults."""
    return ", ".join(name for name in CODECS if Law.SUMMABLE in make_codec(name).laws)
