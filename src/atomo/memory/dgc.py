"""DGC's memory: momentum is accumulated before entries are chosen, not after they are averaged.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training", ICLR 2018, sections 3.1 to 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs import Codec, Law
from atomo.codecs.momentum import MomentumState
from atomo.errors import CheckpointError, CodecError, ConfigError
from atomo.memory.base import Layout, Memory
from atomo.memory.store import Store

__all__ = ["MomentumCorrection"]

# The prefixes of u and v in a state. They look swapped, and stay for the sake of old checkpoints:
# "velocity/" holds v, which waits to be sent, and "momentum/" holds u.
VELOCITY, UNSENT = "momentum/", "velocity/"


@final
class MomentumCorrection(Memory):
    """u = m u + g; v = v + u; sent entries of v become zero in v and, with masking, in u.

    Nesterov: u = m (u + g); v = v + u + g. A lossless codec (biases are sent dense) sends m u + g:
    momentum is linear, so that this equals momentum after the average. The optimizer must not apply
    momentum again. A gradient that is taken back returns to v; the momentum that was masked when
    the gradient was sent stays zero.
    """

    id: ClassVar[str] = "dgc"
    feeds_back: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True
    takes_momentum: ClassVar[bool] = True
    decay_has_momentum: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = (UNSENT, VELOCITY)
    settings: ClassVar[Mapping[str, type]] = MappingProxyType({"masking": bool, "clip": float})

    def __init__(
        self,
        momentum: float = 0.9,
        nesterov: bool = False,
        masking: bool = True,
        clip: float = 0.0,
        workers: int = 1,
    ) -> None:
        """Builds an empty memory.

        Args:
            momentum: m; higher => longer memory of past gradients.
            nesterov: True for Nesterov momentum.
            masking: True to clear the momentum of sent entries, so that it is not applied late. Of
                a codec that sends every entry see `MomentumState.in_time`.
            clip: the largest norm of the average of all workers. Each worker clips its own gradient
                to clip / sqrt(workers), before accumulation. 0: never.
            workers: the number of workers that average their gradients.

        Raises:
            ConfigError: a setting is out of range.
        """
        if not 0 <= momentum < 1:
            raise ConfigError(f"dgc: momentum must be in [0, 1), got {momentum}")
        if not 0 <= clip < math.inf or workers < 1:
            raise ConfigError(
                f"dgc: clip must be 0 or more and workers 1 or more, got {clip} and {workers}"
            )
        self._momentum, self._nesterov, self._masking = momentum, nesterov, masking
        self._clip, self._workers = clip, workers
        # The mean of W independent gradients is sqrt(W) times shorter than each.
        self._max_norm = clip / math.sqrt(workers)
        self._clip_factor = 1.0
        self._velocity, self._unsent = Store(), Store()  # u and v

    @property
    def applied(self) -> tuple[float, bool]:
        return self._momentum, self._nesterov

    def set_workers(self, workers: int) -> None:
        if self._clip and workers != self._workers:
            raise ConfigError(
                f"memory {self.spec} clips for workers={self._workers}, and {workers} average: "
                f"give workers={workers} to make_memory"
            )
        self._workers = workers

    @property
    def accepts_half(self) -> bool:
        return self._clip_factor == 1.0  # a product would be rounded to half precision

    @property
    def needs_norm(self) -> bool:
        return self._max_norm > 0

    def begin(self, norm: float) -> None:
        if not math.isfinite(norm):
            raise CodecError(f"dgc: the norm of the gradient is {norm}")
        self._clip_factor = min(1.0, self._max_norm / norm) if self._max_norm and norm else 1.0

    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[torch.Tensor, "..."],
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        if self._clip_factor != 1.0:
            gradient.mul_(self._clip_factor)
        if not self._momentum:  # u is g, and needs no state
            return self._encode_unsent(codec, gradient, layout, generator)
        velocity = self._velocity.vector(layout, gradient).view(gradient.shape)
        momentum = self._state(velocity, self._workers)
        # A lossless codec sends m u + g and all of v, so that nothing is left for v.
        if Law.LOSSLESS in codec.laws:
            grown = gradient.copy_(momentum.grow(gradient))
            return self._encode_unsent(codec, grown, layout, generator)
        unsent = self._unsent.vector(layout, gradient).view(gradient.shape)
        return codec.encode_momentum(gradient, momentum, unsent, generator)

    def _state(self, velocity: Float[torch.Tensor, "..."], workers: int) -> MomentumState:
        return MomentumState(velocity, self._momentum, self._nesterov, self._masking, workers)

    def _encode_unsent(
        self,
        codec: Codec[Any],
        grown: Float[torch.Tensor, "..."],
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        """Encodes v + `grown`, and keeps the unsent part as v."""
        if Law.LOSSLESS in codec.laws:
            return codec.encode(self._add_unsent(grown, layout), generator)
        unsent = self._unsent.vector(layout, grown).view(grown.shape)
        return codec.encode_residual(grown, unsent, generator)

    def _add_unsent(
        self, gradient: Float[torch.Tensor, "*s"], layout: Layout
    ) -> Float[torch.Tensor, "*s"]:
        """Returns all waiting values, for a codec that leaves nothing unsent."""
        if self._unsent.holds(layout):
            unsent = self._unsent.vector(layout, gradient).view(gradient.shape)
            gradient.add_(unsent)
            unsent.zero_()
        return gradient

    def hold(
        self, gradient: Float[torch.Tensor, "..."], layout: Layout
    ) -> Float[torch.Tensor, "..."]:
        """Returns the gradient with momentum plus the residual of these parameters, as a view of
        the memory.

        For reductions that choose the sent values later: the values that they subtract from the
        view count as sent. They send a part of every entry, so that u keeps its timely part; that
        of one worker, since the same waits with all of them.
        """
        if self._clip_factor != 1.0:
            gradient.mul_(self._clip_factor)
        unsent = self._unsent.vector(layout, gradient).view(gradient.shape)
        if not self._momentum:
            return unsent.add_(gradient)
        velocity = self._velocity.vector(layout, gradient).view(gradient.shape)
        momentum = self._state(velocity, workers=1)
        grown = momentum.grow(gradient)
        in_time = momentum.in_time(grown, unsent) if self._masking else velocity
        unsent.add_(grown)
        velocity.copy_(in_time)
        return unsent

    def take_back(self, layout: Layout, sent: Float[torch.Tensor, " n"]) -> None:
        self._unsent.vector(layout, sent).add_(sent)

    def state_dict(self, *, copy: bool = True) -> dict[str, torch.Tensor]:
        velocity, unsent = self._velocity.state_dict(copy), self._unsent.state_dict(copy)
        return {UNSENT + name: part for name, part in unsent.items()} | {
            VELOCITY + name: part for name, part in velocity.items()
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        for prefix, store in ((VELOCITY, self._velocity), (UNSENT, self._unsent)):
            store.load_state_dict(
                {
                    name.removeprefix(prefix): part
                    for name, part in state.items()
                    if name.startswith(prefix)
                }
            )
        strange = [name for name in state if not name.startswith((VELOCITY, UNSENT))]
        if strange:
            raise CheckpointError(f"memory 'dgc' cannot hold {strange[0]!r}")
