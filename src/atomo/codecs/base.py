"""The codec contract.

A codec is a small immutable value: its fields are its configuration, and it keeps no state between
calls. What must survive from step to step (residuals, momentum) belongs to a memory, and what needs
several rounds of communication (PowerSGD) is a communicator, not a codec.

Gradients are float32, and so is what `decode` returns. A codec that `reads_half` takes bfloat16 and
float16 too, and makes of them the payload of their float32 copy, for which there is then no need;
whoever holds another dtype, or has another codec, converts before `encode`.

Each codec declares which laws it obeys, of those in `codecs/laws.py`.
`tests/codecs/test_contract.py` checks every listed codec against every law it declares, so a new
codec is tested the moment it is listed in `codecs/__init__.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, TypeVar

import torch
from jaxtyping import Float

from atomo.codecs.cost import BESIDE, VISITS, Cost
from atomo.codecs.laws import Field, Law, Unit
from atomo.codecs.momentum import Momentum
from atomo.codecs.rows import RowGradient
from atomo.codecs.settings import check_types
from atomo.devices import to_device

__all__ = ["CONTRACTED", "Codec", "Field", "Law", "Unit"]

CONTRACTED: Final = math.nextafter(1.0, 0.0)
"""The error bound of a contraction of which no more is known."""
Payload = TypeVar("Payload")


class Codec(ABC, Generic[Payload]):
    """Turns one gradient into a payload of tensors, and back. Abstract; subclasses are final."""

    id: ClassVar[str]
    """Its name on the command line, in checkpoints and on the wire. Never reused or changed."""
    payload: ClassVar[type[Any]]
    """The frozen dataclass of tensors that the receiver rebuilds from the wire."""
    unit: ClassVar[Unit]
    """What it sees at once, unless `sees` says otherwise."""
    memory: ClassVar[str | None] = None
    """The memory that the method was published with, where its laws do not say."""
    fine: ClassVar[bool] = False
    """Whether it sends nearly all of every gradient, so that error feedback delays next to
    nothing."""
    contracting: ClassVar[str] = ""
    """The setting that makes it a contraction where it is unbiased, if it has one."""
    votes: ClassVar[bool] = False
    """Whether the aggregate is a vote, so that a step is as long as the learning rate says."""
    joins: ClassVar[bool] = False
    """Whether `add_all` takes less for several payloads than `add_decoded` for each."""
    adds_in_turn: ClassVar[bool] = False
    """Whether `add_all` takes less on a GPU, to the bits of `add_decoded` of one after another."""
    gathers: ClassVar[bool] = False
    """Whether `encode_all` takes less for several gradients than `encode` for each."""
    leaves_entries: ClassVar[bool] = False
    """Whether it sends some entries of what it sees, and nothing of the others."""
    reads_rows: ClassVar[bool] = False
    """Whether `encode_rows` takes less where few rows are there, and `encode_kept` than adding
    zeros."""
    reads_half: ClassVar[bool] = False
    """Whether a gradient may be bfloat16 or float16, in all that encodes one: it is then read as it
    is, and counts as its float32 copy does, bit for bit."""
    shared_seed: ClassVar[bool] = False
    """Whether all workers of a step must encode with the same seed."""

    def __post_init__(self) -> None:
        """Checks the types of the settings. A codec that has more to check calls this first.

        Raises:
            ConfigError: a setting is of another type than its field declares.
        """
        check_types(self)

    @property
    def sees(self) -> Unit:
        """What this configuration sees at once."""
        return self.unit

    @property
    def carries(self) -> type[Any]:
        """The payload of this configuration: `payload`, unless a setting makes it another."""
        return self.payload

    @property
    @abstractmethod
    def laws(self) -> frozenset[Law]:
        """The laws that this configuration obeys."""

    @property
    def error_bound(self) -> float:
        """The proved upper bound of E|C(g) - g|^2 / |g|^2, whatever g is; infinity: none is known.

        Squares are those of the Euclidean norm, or of the largest magnitude. Error feedback keeps
        e' = g + e - C(g + e), so that |e'| <= sqrt(bound) (|g| + |e|): what is kept is bounded
        where this is below 1, and may grow at every step where it is not.
        """
        if Law.LOSSLESS in self.laws:
            return 0.0
        return CONTRACTED if Law.CONTRACTION in self.laws else math.inf

    @abstractmethod
    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Payload:
        """Compresses `gradient`, which is left unchanged. The payload may be a view of it.

        Args:
            gradient: float32, or half precision where it `reads_half`; at least one entry.
            generator: the only source of randomness, on any device. One on the CPU draws the same
                for gradients on all devices.

        Raises:
            CodecError: the gradient is empty, or holds NaN or infinity and the codec cannot carry
                them.
        """

    def encode_all(
        self,
        gradients: Sequence[Float[torch.Tensor, "..."]],
        generators: Sequence[torch.Generator],
    ) -> Iterator[Payload]:
        """What `encode` makes of each of several gradients, in their order.

        On the CPU in every bit. On other devices the same draws, but for what rounding decides:
        libraries add up in another order where they take several matrices at once.

        Args:
            gradients: on one device.
            generators: one for each, none twice.

        Raises:
            CodecError: where the payload would come of the gradient that cannot be carried.
        """
        for gradient, generator in zip(gradients, generators, strict=True):
            yield self.encode(gradient, generator)

    def encode_rows(self, gradient: RowGradient, generator: torch.Generator) -> Payload:
        """What `encode` makes of the whole matrix, of which only some rows are there.

        Args:
            gradient: with at least one entry, if perhaps in rows that are not there.
            generator: as for `encode`.

        Raises:
            CodecError: as `encode` does.
        """
        whole = torch.zeros(gradient.shape, device=gradient.values.device)
        gradient.add_to(whole)
        return self.encode(whole, generator)

    @abstractmethod
    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        """What a payload for a gradient of `shape` may look like, in the order of its fields."""

    @abstractmethod
    def add_decoded(
        self, payload: Payload, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        """Adds `scale` times the decoded gradient to `out`, in place.

        The payload may lie on another device than `out`: frames are read on the CPU. Adding in
        place lets a master sum many workers without a dense copy of each.

        Raises:
            CodecError: the payload does not fit `out`, which is then unchanged. A payload may come
                from another machine, so it is checked here and never trusted.
        """

    def add_all(
        self, payloads: Sequence[Payload], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        """Adds `scale` times each of several decoded gradients to `out`, in place.

        That is `add_decoded` of one after another, but for the order in which a codec that `joins`
        may add up: the last bits depend on which payloads are joined, and on nothing else.

        Raises:
            CodecError: one of them does not fit `out`, which others may have been added to.
        """
        for payload in payloads:
            self.add_decoded(payload, out, scale)

    def cost(self, payload: Payload, shape: torch.Size) -> Cost:
        """What `decode` takes, at most. Of a payload that `decode` refuses, it may be anything.

        It reads sizes and counts, allocates nothing, and raises nothing whatever they are. A codec
        that visits entries more often, or needs more room beside them, than most replaces this.
        """
        del payload
        return Cost(VISITS * shape.numel(), BESIDE * shape.numel())

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        kept: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Payload:
        """Error feedback in one go: adds `gradient` to `kept`, in place, encodes the sum, and
        leaves in `kept` what was not sent.

        A codec that can do so in fewer passes over memory than these three replaces this.
        """
        return self.encode_kept(kept.add_(gradient), generator)

    def encode_kept(self, kept: Float[torch.Tensor, "*s"], generator: torch.Generator) -> Payload:
        """Encodes what is kept, a gradient included, and leaves in `kept` what was not sent."""
        payload = self.encode(kept, generator)
        self.add_decoded(payload, kept, -1.0)
        return payload

    def encode_momentum(
        self,
        gradient: Float[torch.Tensor, "*s"],
        momentum: Momentum,
        kept: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Payload:
        """Momentum correction in one go: `encode_residual` of what `momentum` makes of `gradient`,
        which is used up; with masking, what was sent loses the momentum that would be late.

        Of a codec that sends some entries and leaves others that is all they have, as published.
        Where all entries are sent at every step, most of them have not waited: each keeps the share
        of its momentum that its growth is of what waited and that.

        A codec that can do so in fewer passes over memory than these replaces this.
        """
        if not momentum.masking or self.leaves_entries:
            payload = self.encode_residual(momentum.grow(gradient), kept, generator)
            if momentum.masking:
                self.clear_sent(payload, momentum.velocity.view(-1))
            return payload
        grown = momentum.grow(gradient)
        in_time = momentum.in_time(grown, kept)
        payload = self.encode_residual(grown, kept, generator)
        momentum.velocity.copy_(in_time)
        return payload

    def clear_sent(self, payload: Payload, entries: Float[torch.Tensor, " n"]) -> None:
        """Makes those entries of another vector zero that a payload of our own carries, in place.

        For a codec that `leaves_entries`: what it sent counts as carried even where another codec
        rounded its value to zero.
        """
        raise NotImplementedError(f"{self.id} sends all entries")

    def finish(self, mean: Float[torch.Tensor, "..."]) -> None:
        """Turns the mean of the workers' decoded gradients into the aggregate, in place.

        The mean itself, unless a codec votes.
        """

    @property
    def noisy(self) -> bool:
        """Whether random errors make longer what comes out, and steps must make up for it."""
        return Law.UNBIASED in self.laws and Law.LOSSLESS not in self.laws

    @property
    def carrier(self) -> Codec[Any]:
        """The fine codec that sums of addends travel in, where payloads add up."""
        raise NotImplementedError(f"payloads of {self.id} do not add up")

    def addend(self, payload: Payload) -> Float[torch.Tensor, " k"]:
        """What of a payload adds up, entry by entry, over workers that share a seed: float32.

        It may be a view of the payload, which is of no use once it was changed.
        """
        raise NotImplementedError(f"payloads of {self.id} do not add up")

    def add_summed(
        self,
        payload: Payload,
        total: Float[torch.Tensor, " k"],
        out: Float[torch.Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        """Adds `scale` times the sum of several workers' gradients to `out`, in place.

        Args:
            payload: that of one of them.
            total: the sum of their addends.
            out: float32.
            scale: a factor on the sum.
        """
        del payload  # of most, an addend is the gradient
        out.add_(to_device(total, out.device).view(out.shape), alpha=scale)

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        """The codecs of those payload fields that are themselves coded, by field name."""
        return {}

    def sections(self, payload: Payload) -> list[torch.Tensor]:
        """The tensors of a payload, in the order of `fields`."""
        found: list[torch.Tensor] = []
        for name, value in vars(payload).items():
            found += self.inner[name].sections(value) if name in self.inner else [value]
        return found

    def assemble(self, sections: Iterator[torch.Tensor]) -> Payload:
        """The inverse of `sections`. Takes as many tensors as it needs."""
        inner = self.inner
        parts = [
            inner[name].assemble(sections) if name in inner else next(sections)
            for name in self.payload_names
        ]
        rebuilt: Payload = self.carries(*parts)
        return rebuilt

    @cached_property
    def payload_names(self) -> tuple[str, ...]:
        """The names of a payload's fields."""
        return tuple(field.name for field in fields(self.carries))

    def decode(self, payload: Payload, shape: torch.Size) -> Float[torch.Tensor, "..."]:
        """Rebuilds a float32 gradient of `shape` on its own."""
        out = torch.zeros(shape)
        self.add_decoded(payload, out)
        return out

    def __str__(self) -> str:
        """The specification that `make_codec` turns into an equal codec."""
        settings = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)  # type: ignore[arg-type]  # every codec is a dataclass
            if getattr(self, field.name) != field.default
        ]
        return f"{self.id}({', '.join(settings)})" if settings else self.id
