"""All-reduce: payloads are added up on their way, and the sum is decoded once.

What a rank sends and receives does not grow with the number of ranks: twice a payload. That needs
payloads that add up (`Law.SUMMABLE`).
"""

from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from atomo.codecs import CODECS, Codec, Law, make_codec
from atomo.communicators.base import Finish, Reduction
from atomo.communicators.collective import Addend, Collective
from atomo.communicators.exchange import Compressor, finish
from atomo.errors import ConfigError
from atomo.fusion import Bucket

__all__ = ["Allreduce"]


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
        coded = list(zip(bucket.parts, encoded, strict=True))
        addends = [Addend(part.codec.addend(load), part.codec.carrier) for part, load in coded]
        share = 1 / self._collective.size

        def add_sum(out: Float[Tensor, " n"]) -> None:
            self._collective.sum(addends, f"bucket {bucket.number} of step {step}")
            for (part, payload), addend in zip(coded, addends, strict=True):
                place = out[part.start : part.stop].view(part.shape)
                part.codec.add_summed(payload, addend.values, place, share)
            finish(bucket, out)

        return add_sum


def summable() -> str:
    """The codecs that go with it on their defaults."""
    return ", ".join(name for name in CODECS if Law.SUMMABLE in make_codec(name).laws)
