"""The memory contract: what a worker keeps back when its codec drops part of a gradient.

Law, checked in `tests/memory/test_conservation.py`: what is sent plus what is kept equals what came
in plus what was kept. What a memory saves is keyed by parameter name, so that it survives a resume,
another division into buckets, and another number of workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs import Codec
from atomo.codecs.rows import RowGradient

__all__ = ["Layout", "Memory"]

Layout = Mapping[str, "torch.Size"]
"""The parameters that a gradient joins, in the order in which they lie in it, and their shapes."""


class Memory(ABC):
    """Keeps what was not sent. Abstract; subclasses are final."""

    id: ClassVar[str]
    """Its name on the command line."""
    feeds_back: ClassVar[bool]
    """Error feedback: whether it sends later what was not sent, or did not count."""
    has_momentum: ClassVar[bool] = False
    """True if momentum is applied before encoding, so that the optimiser must not apply it again.
    """
    takes_momentum: ClassVar[bool] = False
    """True if it applies the momentum that `make_memory` is given, and not one of its own."""
    decay_has_momentum: ClassVar[bool] = False
    """True if the optimiser gives momentum to weight decay, though not to the gradient."""
    makes_update: ClassVar[bool] = False
    """True if it sends the update of an adaptive optimiser, so that the optimiser at the other end
    only subtracts the average times the learning rate."""
    vectors: ClassVar[tuple[str, ...]] = ("",)
    """The vectors that the state holds for each parameter: their prefixes to the parameter's name.
    """
    numbers: ClassVar[tuple[str, ...]] = ()
    """The prefixes of entries of its state that are one float64 of each parameter."""
    statistics: ClassVar[tuple[str, ...]] = ()
    """The prefixes of entries that are means over steps or counts of them, and nothing unsent: a
    worker that takes over several memories has the mean of these, and the sum of the others."""
    scalars: ClassVar[frozenset[str]] = frozenset()
    """The scalars of the state beside vectors of parameters, one float64 each."""
    encodes_rows: ClassVar[bool] = False
    """True if `encode_rows` costs less than `encode` where few rows are present."""
    settings: ClassVar[Mapping[str, type]] = MappingProxyType({})
    """The settings that its specification takes, and their types. Each has an attribute of its name
    behind an underscore."""

    @property
    def spec(self) -> str:
        """The specification of such a memory, with the settings that are not the defaults."""
        defaults = signature(type(self)).parameters
        own = {name: getattr(self, f"_{name}") for name in self.settings}
        given = [f"{name}={v}" for name, v in own.items() if v != defaults[name].default]
        return f"{self.id}({', '.join(given)})" if given else self.id

    @property
    def applied(self) -> tuple[float, bool]:
        """The momentum that it applies, and True if that is Nesterov's."""
        return 0.0, False

    def check_workers(self, workers: int) -> None:
        """Raises ConfigError if it was made for another number of workers, where that counts."""
        del workers

    @property
    def accepts_half(self) -> bool:
        """True if `encode` takes half-precision gradients without a copy, for codecs that accept
        them.
        """
        return False

    @property
    def needs_norm(self) -> bool:
        """True if `begin` needs the norm of the whole gradient before any part is encoded."""
        return False

    def begin(self, norm: float) -> None:
        """Announces the norm of the whole gradient of the step to come.

        Raises:
            CodecError: it is not finite.
        """
        del norm  # most have no use for it

    def set_learning_rate(self, rate: float) -> None:
        """Announces the learning rate of the next step.

        Only a memory in units of the update uses the rate, and needs it before each `encode`.
        """
        del rate

    @final
    def at_rate(self, rate: float) -> None:
        """Calls `set_learning_rate`; the name of earlier versions, which callers may still use."""
        self.set_learning_rate(rate)

    @abstractmethod
    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[torch.Tensor, "..."],
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        """Encodes the sum of a gradient and the residual of its parameters, and updates the
        residual.

        The call is one step, so that a codec may do all of it in one pass over memory.

        Keeps what the payload does not carry. One call, so that a codec may do it all in one pass.

        Args:
            codec: what encodes.
            gradient: contiguous, float32, or half precision where memory and codec read it;
                scratch space afterwards, of which the payload may be a view.
            layout: what lies in it.
            generator: the codec's.

        Raises:
            CodecError: the codec cannot carry it.
        """

    def encode_all(
        self,
        codec: Codec[Any],
        gradients: Sequence[Float[torch.Tensor, "..."]],
        layouts: Sequence[Layout],
        generators: Sequence[torch.Generator],
    ) -> Iterator[Any]:
        """Encodes several gradients, and yields the payloads in their order.

        Args:
            codec: what encodes all of them.
            gradients: as for `encode`, on one device.
            layouts: what lies in each.
            generators: one for each, none twice.

        Raises:
            CodecError: where the payload would come of the gradient that cannot be carried.
        """
        for gradient, own, generator in zip(gradients, layouts, generators, strict=True):
            yield self.encode(codec, gradient, own, generator)

    def encode_rows(
        self,
        codec: Codec[Any],
        gradient: RowGradient,
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        """Encodes a matrix with few non-zero rows, as `encode` encodes the whole matrix.

        Args:
            codec: what encodes.
            gradient: of one parameter; scratch space afterwards.
            layout: that parameter.
            generator: the codec's.

        Raises:
            CodecError: the codec cannot carry it.
        """
        whole = torch.empty(gradient.shape, device=gradient.values.device)
        gradient.write_to(whole)
        return self.encode(codec, whole, layout, generator)

    @abstractmethod
    def take_back(self, layout: Layout, sent: Float[torch.Tensor, " n"]) -> None:
        """Records that what was sent of these parameters never counted: it is kept instead."""

    @abstractmethod
    def state_dict(self, *, copy: bool = True) -> dict[str, torch.Tensor]:
        """Returns the state that lets training resume exactly, by parameter name.

        Args:
            copy: whether vectors are copies; else they are what is kept, and change as it does. A
                worker may have no room for another of each.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replaces what is kept by what `state_dict` returned."""
