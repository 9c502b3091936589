"""The memory contract: a memory stores the part of a gradient that a codec did not send.

Law, checked in `tests/memory/test_conservation.py`: the sent part plus the new residual equals the
gradient plus the old residual. The state is keyed by parameter name, so that it stays valid after a
resume, with other buckets, and with another number of workers.
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
"""The parameters of a bucket and their shapes, in the order of the flattened gradient."""


class Memory(ABC):
    """Store of what was not sent. Abstract; subclasses are final."""

    id: ClassVar[str]
    """The name on the command line."""
    feeds_back: ClassVar[bool]
    """True for error feedback: unsent or uncounted parts are sent at a later step."""
    has_momentum: ClassVar[bool] = False
    """True if momentum is applied before encoding, so that the optimizer must not apply it again.
    """
    takes_momentum: ClassVar[bool] = False
    """True if the memory applies the momentum that `make_memory` is given."""
    decay_has_momentum: ClassVar[bool] = False
    """True if the optimizer applies momentum to weight decay, but not to the gradient."""
    makes_update: ClassVar[bool] = False
    """True if the memory sends the update of an adaptive optimizer, so that the receiving optimizer
    only subtracts the average times the learning rate."""
    vectors: ClassVar[tuple[str, ...]] = ("",)
    """The prefixes, before a parameter's name, of the vectors in the state."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """The prefixes of the entries of the state that are one float64 for each parameter."""
    statistics: ClassVar[tuple[str, ...]] = ()
    """The prefixes of entries that are means over steps, or counts of steps, and not unsent parts:
    a worker that takes over several memories averages these, and sums the others."""
    scalars: ClassVar[frozenset[str]] = frozenset()
    """The entries of the state that belong to no parameter, one float64 each."""
    encodes_rows: ClassVar[bool] = False
    """True if `encode_rows` costs less than `encode` where few rows are present."""
    settings: ClassVar[Mapping[str, type]] = MappingProxyType({})
    """The settings of the specification, and their types. The attribute of a setting is its name
    after an underscore."""
    synonyms: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other names of settings in a specification, and the settings; stored strings never have
    them."""

    @property
    def spec(self) -> str:
        """The specification of this memory, with all settings that are not defaults."""
        defaults = signature(type(self)).parameters
        own = {name: getattr(self, f"_{name}") for name in self.settings}
        changed = [f"{name}={v}" for name, v in own.items() if v != defaults[name].default]
        return f"{self.id}({', '.join(changed)})" if changed else self.id

    @property
    def applied(self) -> tuple[float, bool]:
        """The momentum that the memory applies, and True for Nesterov momentum."""
        return 0.0, False

    def set_workers(self, workers: int) -> None:
        """Sets the number of workers that average their gradients, for a memory that depends on it.

        Raises:
            ConfigError: the memory clips for another number.
        """
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
            CodecError: the norm is not finite.
        """
        del norm  # for memories that clip

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

        Args:
            codec: the codec of the gradient.
            gradient: contiguous, float32, or half precision where memory and codec accept it.
                Scratch space afterwards, of which the payload may be a view.
            layout: the parameters of the gradient.
            generator: the random numbers of the codec.

        Raises:
            CodecError: the codec cannot encode the gradient.
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
            codec: the codec of all gradients.
            gradients: as for `encode`, on one device.
            layouts: the parameters of each gradient.
            generators: one for each gradient, all different.

        Raises:
            CodecError: a gradient cannot be encoded; raised in place of its payload.
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
            codec: the codec of the gradient.
            gradient: of one parameter; scratch space afterwards.
            layout: the parameter.
            generator: the random numbers of the codec.

        Raises:
            CodecError: the codec cannot encode the gradient.
        """
        whole = torch.empty(gradient.shape, device=gradient.values.device)
        gradient.write_to(whole)
        return self.encode(codec, whole, layout, generator)

    @abstractmethod
    def take_back(self, layout: Layout, sent: Float[torch.Tensor, " n"]) -> None:
        """Adds a sent gradient that did not count back to the residual of its parameters."""

    @abstractmethod
    def state_dict(self, *, copy: bool = True) -> dict[str, torch.Tensor]:
        """Returns the state that lets training resume exactly, by parameter name.

        Args:
            copy: True to copy the vectors. Otherwise they are the vectors of the memory itself, and
                change with it: a worker may not have room for copies.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replaces the state by one that `state_dict` returned."""
