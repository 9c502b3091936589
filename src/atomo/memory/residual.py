"""Error feedback: adds to each gradient the part of the last one that was not sent.

Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019; Zheng, Huang and Kwok,
"Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019;
Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025 (arXiv:2508.15706).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float

from atomo.codecs import Codec, Law
from atomo.codecs.rows import RowGradient
from atomo.errors import CheckpointError, ConfigError
from atomo.memory.base import Layout, Memory
from atomo.memory.store import Store

__all__ = ["Residual"]

UNITS: Final = ("gradient", "update")
RATE: Final = "/learning-rate"  # in a state: no parameter has a name like this


@final
class Residual(Memory):
    """Encodes beta r + gamma g for a gradient g, and keeps the unsent part as r.

    With both factors at 1, which is the default, nothing is ever lost. Public code often uses a
    beta of 0.9 without saying so, and then loses a part of every residual. SparseLoCo decays the
    residual by 0.95 at every exchange on purpose; a specification may call beta `decay`.

    `units=update` is EF-signSGD's error feedback: p = lr g + e, C(p) is sent, e = p - C(p), and the
    weights move by C(p). The residual is then a part of an update: a residual from a time of a
    higher learning rate keeps its size when the rate falls. The optimizer multiplies by the rate
    afterwards. Therefore C(p) / lr is sent, which is C(g + e / lr) for every codec that scales with
    its gradient. The result differs from `units=gradient` only where the rate changes.
    """

    id: ClassVar[str] = "residual"
    feeds_back: ClassVar[bool] = True
    encodes_rows: ClassVar[bool] = True
    scalars: ClassVar[frozenset[str]] = frozenset({RATE})
    settings: ClassVar[Mapping[str, type]] = MappingProxyType(
        {"beta": float, "gamma": float, "units": str}
    )
    synonyms: ClassVar[Mapping[str, str]] = MappingProxyType({"decay": "beta"})

    def __init__(self, beta: float = 1.0, gamma: float = 1.0, units: str = "gradient") -> None:
        """Builds an empty memory.

        Args:
            beta: the weight of the residual; below 1, a part of it is lost at every step.
            gamma: the weight of the gradient.
            units: "gradient", or "update" for a residual in units of the gradient times the
                learning rate; `set_learning_rate` must then be called before each step.

        Raises:
            ConfigError: a setting is out of range.
        """
        if not 0 <= beta <= 1 or not 0 < gamma < math.inf:
            raise ConfigError(
                "residual: beta (decay) must be in [0, 1] and gamma above 0, "
                f"got {beta} and {gamma}"
            )
        if units not in UNITS:
            raise ConfigError(f"residual: units must be gradient or update, got {units!r}")
        self._beta, self._gamma, self._units = beta, gamma, units
        self._rate = 0.0  # the learning rate that the stored residual is divided by
        self._kept = Store()

    def set_learning_rate(self, rate: float) -> None:
        # The residual is stored divided by the current rate: a pass over it is only needed when the
        # rate changes.
        if self._units != "update" or rate == self._rate or not rate > 0:
            return
        if self._rate:
            self._kept.scale(self._rate / rate)
        self._rate = rate

    @property
    def accepts_half(self) -> bool:
        return self._gamma == 1  # a product would be rounded to half precision

    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[torch.Tensor, "..."],
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        # At their defaults neither factor costs a pass over memory.
        if self._gamma != 1:
            gradient.mul_(self._gamma)
        if Law.LOSSLESS not in codec.laws:
            residual = self._kept.vector(layout, gradient).view(gradient.shape)
            if self._beta != 1:
                residual.mul_(self._beta)
            # p = beta r + gamma g; sends C(p), keeps p - C(p): one call, often one pass.
            return codec.encode_residual(gradient, residual, generator)
        if self._kept.holds(layout):  # all of it is sent now
            residual = self._kept.vector(layout, gradient).view(gradient.shape)
            # The product is rounded before it is added, as with other codecs.
            gradient.add_(residual.mul_(self._beta))
            residual.zero_()
        return codec.encode(gradient, generator)

    def encode_all(
        self,
        codec: Codec[Any],
        gradients: Sequence[Float[torch.Tensor, "..."]],
        layouts: Sequence[Layout],
        generators: Sequence[torch.Generator],
    ) -> Iterator[Any]:
        if not codec.batch_encodes or Law.LOSSLESS in codec.laws:
            yield from super().encode_all(codec, gradients, layouts, generators)
            return
        residuals = [
            self.hold(gradient, own) for gradient, own in zip(gradients, layouts, strict=True)
        ]
        # If a gradient cannot be encoded, later gradients are not sent, and stay in the residuals.
        for residual, payload in zip(
            residuals, codec.encode_all(residuals, generators), strict=True
        ):
            codec.add_decoded(payload, residual, -1.0)
            yield payload

    def encode_rows(
        self,
        codec: Codec[Any],
        gradient: RowGradient,
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        if self._gamma != 1:
            gradient.values.mul_(self._gamma)
        if Law.LOSSLESS in codec.laws and not self._kept.holds(layout):
            return codec.encode_rows(gradient, generator)
        # The residual has values in all rows, so that all are encoded; the gradient adds to few.
        residual = self._kept.vector(layout, gradient.values).view(gradient.shape)
        if self._beta != 1:
            residual.mul_(self._beta)
        gradient.add_to(residual)
        if Law.LOSSLESS not in codec.laws:
            return codec.encode_accumulated(residual, generator)
        whole = residual.clone()
        residual.zero_()
        return codec.encode(whole, generator)

    def hold(
        self, gradient: Float[torch.Tensor, "..."], layout: Layout
    ) -> Float[torch.Tensor, "..."]:
        """Returns the gradient plus the residual of these parameters, as a view of the memory.

        For reductions that choose the sent values later: the values that they subtract from the
        view count as sent.
        """
        residual = self._kept.vector(layout, gradient).view(gradient.shape)
        if self._beta != 1:
            residual.mul_(self._beta)
        # The product is rounded before it is added, as in `encode`.
        return residual.add_(gradient if self._gamma == 1 else gradient * self._gamma)

    def take_back(self, layout: Layout, sent: Float[torch.Tensor, " n"]) -> None:
        self._kept.vector(layout, sent).add_(sent)

    def state_dict(self, *, copy: bool = True) -> dict[str, torch.Tensor]:
        rate = {RATE: torch.tensor(self._rate, dtype=torch.float64)} if self._rate else {}
        return self._kept.state_dict(copy) | rate

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self._rate = float(state[RATE]) if RATE in state else 0.0
        if not 0 <= self._rate < math.inf:
            raise CheckpointError(f"memory 'residual' cannot hold a learning rate of {self._rate}")
        self._kept.load_state_dict({name: part for name, part in state.items() if name != RATE})
