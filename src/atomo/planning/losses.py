"""What codecs lose of a gradient, tensor by tensor.

The error of a codec C on a tensor g is E ||C(g) - g||^2, over ||g||^2 of the whole gradient: so the
errors of all tensors add up to that of the whole, whichever codec each has. It is what theory
counts in: 1 - delta of a contraction, of which a memory keeps the rest, and omega of an unbiased
codec, whose errors W workers average to omega / W.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from torch import Tensor

from atomo.codecs import Codec, Law
from atomo.communicators import Compressor
from atomo.communicators.exchange import gradient_of
from atomo.fusion import Bucket, plan
from atomo.grouping import Grouping
from atomo.memory import Forget
from atomo.wire import Compression

__all__ = ["Losses", "measure_losses"]

LAYERS: Final = Grouping("layer")
DRAWS: Final = 3  # of what is random


@final
@dataclass(frozen=True)
class Losses:
    """Of one codec on one gradient."""

    errors: tuple[float, ...]
    """Of each tensor, from the last parameter to the first."""
    averages: bool
    """Whether they are noise, which the mean over W workers has a W-th of."""

    @staticmethod
    def of(codec: Codec[Any], errors: tuple[float, ...]) -> "Losses":
        """With the laws of a codec."""
        return Losses(errors, Law.UNBIASED in codec.laws)

    def of_mean(self, workers: int) -> tuple[float, ...]:
        """The same of the mean over so many workers, with gradients that are alike."""
        parts = workers if self.averages else 1
        return tuple(error / parts for error in self.errors)


def measure_losses(codec: Codec[Any], gradient: Mapping[str, Tensor], seed: int = 1) -> Losses:
    """Encodes each tensor by itself and compares what arrives.

    Args:
        codec: what encodes; small vectors travel dense, as in a run.
        gradient: float32 tensors by parameter name, in forward order.
        seed: of the codec's draws.

    Raises:
        CodecError: the codec cannot carry the gradient.
    """
    total = max(sum(float(one.norm()) ** 2 for one in gradient.values()), 1e-300)
    compressor = Compressor(Forget(), Compression(), worker=1, seed=seed)
    shapes = [(name, tensor.shape) for name, tensor in gradient.items()]
    errors = [
        squared_error(compressor, bucket, gradient[bucket.slots[0].name].flatten()) / total
        for bucket in plan(shapes, codec, LAYERS)
    ]
    return Losses.of(codec, tuple(errors))


def squared_error(compressor: Compressor, bucket: Bucket, flat: Tensor) -> float:
    """The mean of some draws."""
    (part,) = bucket.parts
    if Law.LOSSLESS in part.codec.laws:
        return 0.0
    found = []
    for draw in range(1, DRAWS + 1 if Law.UNBIASED in part.codec.laws else 2):
        compressor.agree(compressor.propose(bucket, flat))
        (payload,) = compressor.encode(bucket, flat.clone(), draw)
        lost = flat.clone()
        part.codec.add_decoded(payload, gradient_of(part, lost), -1.0)
        found.append(float(lost.norm()) ** 2)
    return sum(found) / len(found)
