"""The base of reductions that sum low-rank factors: state, tensors, and checks of options."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from atomo.codecs import Codec, Law
from atomo.codecs.dense_fallback import DENSE
from atomo.codecs.spec import read_call
from atomo.codecs.spectral.svd import SVD
from atomo.errors import CodecError, ConfigError
from atomo.exchange.base import Reduction
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.exchange.compressor import Compressor, gradient_of, layout
from atomo.exchange.reductions.factors import Factors, Matrix, Side
from atomo.exchange.reductions.warm_start import WarmStart
from atomo.fusion import Bucket
from atomo.memory import MomentumCorrection, Residual

__all__ = ["MEMORIES", "FactorBatch", "LowRankReduction", "NotFiniteSum", "P", "Q", "low_rank"]

P, Q = "p/", "q/"  # prefixes of the names of factors in a state
MEMORIES: Final = (Residual.id, MomentumCorrection.id)


class NotFiniteSum(CodecError):
    """A sum over all ranks is not finite. Every rank detects this in the same sum."""


@final
@dataclass(frozen=True)
class FactorBatch:
    """The factors of a bucket, before or after their sum."""

    factors: Factors
    side: Side
    """The factors of the first sum, and the dense parameters."""
    accumulated: list[Float[Tensor, "_ _"]]
    """The gradients plus residuals. They are views of the memory: values that are subtracted here
    count as sent."""


class LowRankReduction(Reduction[FactorBatch, FactorBatch]):
    """Sums of factors. Abstract; subclasses say which factors a step sends.

    A rank has gradients, residuals in its memory, and the factors of the step before.
    """

    memories: ClassVar[tuple[str, ...]] = MEMORIES
    is_code: ClassVar[bool] = True
    has_state: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = False
    accepts_gaps: ClassVar[bool] = True
    warm_prefixes: ClassVar[tuple[str, ...]]
    """The prefixes of the factors from which the next step starts, in names in a state."""

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        memory = compressor.memory
        if not isinstance(memory, Residual | MomentumCorrection):
            raise ConfigError(
                f"low-rank factors go with memory {' or '.join(MEMORIES)}, not {memory.id}: what "
                "they leave out would be lost"
            )
        self._warm = WarmStart(compressor.seed)
        self._share = 1 / collective.size
        self._collective, self._memory = collective, memory
        self._factors: dict[tuple[int, int, tuple[int, ...]], Factors] = {}

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return low_rank(codec, cls.__name__)

    @classmethod
    def codec_for(cls, code: str) -> Codec[Any]:
        """Returns the codec that has the rank of a code.

        Raises:
            ConfigError: the code has another setting than a rank, or a rank below 1.
        """
        name, settings = read_call(code)
        own = name.lower()
        if settings.keys() - {"rank"}:
            raise ConfigError(
                f"{own} takes a rank and nothing else, such as {own}(rank=4): {code!r}"
            )
        rank = settings.get("rank", SVD().rank)
        if type(rank) is not int or rank < 1:
            raise ConfigError(f"{own}: rank must be a whole number of 1 or more, got {rank!r}")
        return cls.adapt_codec(SVD(rank=rank))

    def accumulate(
        self, bucket: Bucket, flat: Float[Tensor, " n"], unused: frozenset[str]
    ) -> FactorBatch:
        """Adds the gradient of a bucket to its residual; dense parameters have no residual.

        Args:
            bucket: a bucket with codecs as `low_rank` returns them.
            flat: its gradient; scratch space afterwards.
            unused: the parameters with a gradient of zeros; their residuals do not change.
        """
        factors = self._factors_of(bucket, flat.device)
        accumulated = [
            gradient.view(matrix.m, matrix.n)
            if matrix.name in unused
            else self._memory.hold(gradient, layout(matrix.part)).view(matrix.m, matrix.n)
            for matrix in factors.matrices
            for gradient in [gradient_of(matrix.part, flat)]
        ]
        return FactorBatch(factors, factors.left, accumulated)

    def copy_dense(self, batch: FactorBatch, flat: Float[Tensor, " n"]) -> None:
        """Copies the dense parameters behind the factors that are sent."""
        start = 0
        for part in batch.factors.dense:
            gradient, stop = gradient_of(part, flat), start + part.shape.numel()
            payload = self._memory.encode(DENSE, gradient, layout(part), Generator())
            batch.side.dense[start:stop] = payload.values
            start = stop

    def sum(self, flat: Float[Tensor, " n"], label: str) -> None:
        """Replaces factors by their sums over all ranks.

        Raises:
            NotFiniteSum: a rank's gradient holds NaN or infinity; all ranks raise it.
        """
        if flat.numel():
            self._collective.sum([Addend(flat, DENSE)], label)
        if not bool(flat.isfinite().all()):
            raise NotFiniteSum(
                f"{label}: a rank's gradient is not finite, or too large for float32"
            )

    def warm_factor(
        self, prefix: str, matrix: Matrix, device: torch.device
    ) -> Float[Tensor, "rows rank"]:
        """Returns the factor of a matrix from which this step starts."""
        rows = matrix.m if prefix == P else matrix.n
        return self._warm.factor(prefix + matrix.name, rows, matrix.rank, device)

    def _factors_of(self, bucket: Bucket, device: torch.device) -> Factors:
        key = bucket.number, bucket.layout_hash, bucket.starts
        if key not in self._factors:
            self._factors[key] = Factors(bucket, device)
        return self._factors[key]

    def prepare(self, bucket: Bucket, device: torch.device) -> None:
        """Draws the missing factors of a bucket, so that the state has them."""
        for matrix in Factors(bucket, device).matrices:
            for prefix in self.warm_prefixes:
                self.warm_factor(prefix, matrix, device)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the factors from which the next step starts."""
        return self._warm.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._warm.load_state_dict(state)


def low_rank(codec: Codec[Any], comm_type: str) -> Codec[Any]:
    """Returns the codec with the rank of the factors and the shapes of the matrices.

    It is `svd` with the largest atoms, and each parameter as a matrix with a row for each output
    channel, as published. `sgd` does not change: all parameters are dense.

    Raises:
        ConfigError: it is another codec, or its factors cannot be summed.
    """
    if Law.LOSSLESS in codec.laws:
        return codec
    if not isinstance(codec, SVD) or codec.factors is not None or codec.rank < 1:
        raise ConfigError(
            f"--comm-type {comm_type} sends two factors of each matrix, of a rank of 1 or more and "
            f"as float32, not {codec}; give --svd-rank 4, --code 'svd(rank=4)', or sgd"
        )
    return replace(codec, selection="top", matricisation="filters")
