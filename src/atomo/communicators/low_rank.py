"""What the ways to average low-rank factors have in common: memory, room, and what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from atomo.codecs import Codec, Law
from atomo.codecs.dense_fallback import DENSE
from atomo.codecs.spectral.svd import SVD
from atomo.communicators.collective import Addend, Collective
from atomo.communicators.exchange import Compressor, gradient_of, layout
from atomo.communicators.factors import Factors, Side
from atomo.communicators.warm import Warm
from atomo.errors import CodecError, ConfigError
from atomo.fusion import Bucket
from atomo.memory import MomentumCorrection, Residual

__all__ = ["MEMORIES", "Held", "LowRank", "low_rank"]

MEMORIES: Final = (Residual.id, MomentumCorrection.id)


@final
@dataclass(frozen=True)
class Held:
    """A bucket of which the factors are to be summed."""

    factors: Factors
    wholes: list[Float[Tensor, "_ _"]]
    """The gradients together with what was kept of them. They lie in the memory: what is
    subtracted there counts as sent."""


@final
class LowRank:
    """One rank's gradients, residuals and factors."""

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        memory = compressor.memory
        if not isinstance(memory, Residual | MomentumCorrection):
            raise ConfigError(
                f"low-rank factors go with memory {' or '.join(MEMORIES)}, not {memory.id}: what "
                "they leave out would be lost"
            )
        self.warm = Warm(compressor.seed)
        self._collective, self._memory = collective, memory
        self._rooms: dict[tuple[int, int], Factors] = {}

    def hold(
        self, bucket: Bucket, flat: Float[Tensor, " n"], idle: frozenset[str] = frozenset()
    ) -> Held:
        """A bucket's gradient together with what was kept; what travels dense is in no memory.

        Args:
            bucket: of parts as `low_rank` has them.
            flat: its gradient; scratch space afterwards.
            idle: parameters whose gradient is zero, and whose memory is to be left alone.
        """
        factors = self._room(bucket, flat.device)
        wholes = [
            gradient.view(one.m, one.n)
            if one.name in idle
            else self._memory.hold(gradient, layout(one.part)).view(one.m, one.n)
            for one in factors.matrices
            for gradient in [gradient_of(one.part, flat)]
        ]
        return Held(factors, wholes)

    def dense(self, held: Held, flat: Float[Tensor, " n"], side: Side) -> None:
        """Copies what travels dense behind the factors of a side."""
        start = 0
        for part in held.factors.dense:
            gradient, stop = gradient_of(part, flat), start + part.stop - part.start
            payload = self._memory.encode(DENSE, gradient, layout(part), Generator())
            side.dense[start:stop] = payload.values
            start = stop

    def sum(self, flat: Float[Tensor, " n"], what: str) -> None:
        """Replaces factors by their sums over all ranks.

        Raises:
            CodecError: a rank's gradient holds NaN or infinity; all ranks find that out.
        """
        if flat.numel():
            self._collective.sum([Addend(flat, DENSE)], what)
        if not bool(flat.isfinite().all()):
            raise CodecError(f"{what}: a rank's gradient is not finite, or too large for float32")

    def _room(self, bucket: Bucket, device: torch.device) -> Factors:
        key = bucket.number, bucket.layout_hash
        if key not in self._rooms:
            self._rooms[key] = Factors(bucket, device)
        return self._rooms[key]

    def state_dict(self) -> dict[str, Tensor]:
        """The factors that the next step starts from."""
        return self.warm.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces them."""
        self.warm.load_state_dict(state)


def low_rank(codec: Codec[Any], comm_type: str) -> Codec[Any]:
    """The codec that says which factors are sent: `svd` with the largest atoms, of each parameter
    as a matrix with a row for each output channel, as published. `sgd` stays: all travels dense.

    Raises:
        ConfigError: it is another codec, or its factors cannot be added up.
    """
    if Law.LOSSLESS in codec.laws:
        return codec
    if not isinstance(codec, SVD) or codec.factors is not None or codec.rank < 1:
        raise ConfigError(
            f"--comm-type {comm_type} sends two factors of each matrix, of a rank of 1 or more and "
            f"as float32, not {codec}; give --svd-rank 4, --code 'svd(rank=4)', or sgd"
        )
    return replace(codec, selection="top", matricisation="filters")
