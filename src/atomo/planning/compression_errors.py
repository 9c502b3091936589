"""Compression errors of codecs on a gradient, tensor by tensor.

The error of a codec C on a tensor g is E ||C(g) - g||^2 over ||g||^2 of the whole gradient: the
errors of all tensors add up to the error of the whole gradient, whichever codec each tensor has.
Theory counts in the same unit: 1 - delta of a contraction (a memory stores the error as residual),
and omega of an unbiased codec (the mean of W workers has an error of omega / W).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from torch import Tensor

from atomo.codecs import Codec, Law
from atomo.exchange import Compressor
from atomo.exchange.compressor import gradient_of
from atomo.fusion import Bucket, plan
from atomo.memory import NoMemory
from atomo.options.grouping import Grouping
from atomo.wire import Compression

__all__ = ["CompressionErrors", "measure_compression_errors"]

LAYERS: Final = Grouping("layer")
DRAWS: Final = 3  # of a random codec


@final
@dataclass(frozen=True)
class CompressionErrors:
    """Errors of one codec on one gradient."""

    errors: tuple[float, ...]
    """Error of each tensor, from the last parameter to the first."""
    averages: bool
    """True if the errors are independent noise: the mean over W workers has a W-th of it."""

    @staticmethod
    def of(codec: Codec[Any], errors: tuple[float, ...]) -> "CompressionErrors":
        """Builds the errors, with the laws of a codec."""
        return CompressionErrors(errors, Law.UNBIASED in codec.laws)

    def of_mean(self, workers: int) -> tuple[float, ...]:
        """Returns the errors of the mean over `workers` workers with similar gradients."""
        parts = workers if self.averages else 1
        return tuple(error / parts for error in self.errors)


def measure_compression_errors(
    codec: Codec[Any], gradient: Mapping[str, Tensor], seed: int = 1
) -> CompressionErrors:
    """Encodes each tensor by itself and compares the decoded tensor with it.

    Args:
        codec: encodes the tensors; small vectors travel dense, as in a run.
        gradient: float32 tensors by parameter name, in forward order.
        seed: of the codec's draws.

    Raises:
        CodecError: the codec cannot carry the gradient.
    """
    total = max(sum(float(tensor.norm()) ** 2 for tensor in gradient.values()), 1e-300)
    compressor = Compressor(NoMemory(), Compression(), worker=1, seed=seed)
    shapes = [(name, tensor.shape) for name, tensor in gradient.items()]
    errors = [
        squared_error(compressor, bucket, gradient[bucket.slots[0].name].flatten()) / total
        for bucket in plan(shapes, codec, LAYERS)
    ]
    return CompressionErrors.of(codec, tuple(errors))


def squared_error(compressor: Compressor, bucket: Bucket, flat: Tensor) -> float:
    """Returns the squared error, the mean of some draws."""
    (part,) = bucket.parts
    if Law.LOSSLESS in part.codec.laws:
        return 0.0
    squares = []
    for draw in range(1, DRAWS + 1 if Law.UNBIASED in part.codec.laws else 2):
        compressor.agree(compressor.propose(bucket, flat))
        (payload,) = compressor.encode(bucket, flat.clone(), draw)
        lost = flat.clone()
        part.codec.add_decoded(payload, gradient_of(part, lost), -1.0)
        squares.append(float(lost.norm()) ** 2)
    return sum(squares) / len(squares)
