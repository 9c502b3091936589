"""The codec contract.

A codec is a small immutable value: its fields are its configuration, and it keeps no state between
calls. State that lasts from step to step (residuals, momentum) belongs to a memory. A method that
needs several rounds of communication (PowerSGD) is a communicator, not a codec.

Gradients are float32, and `decode` returns float32. A codec with `accepts_half` also takes bfloat16
and float16: the payload equals that of a float32 copy of the gradient, and no copy is made. For all
other dtypes and codecs the caller converts before `encode`.

Each codec declares the laws that it obeys (`codecs/laws.py`). `tests/codecs/test_contract.py`
checks every codec in the table of `codecs/__init__.py` against every law that the codec declares.
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

from atomo.codecs.cost import BESIDE, VISITS, DecodeCost
from atomo.codecs.laws import Field, Granularity, Law
from atomo.codecs.momentum import MomentumState
from atomo.codecs.rows import RowGradient
from atomo.codecs.settings import check_types
from atomo.core.devices import to_device

__all__ = ["CONTRACTED", "Codec", "Field", "Granularity", "Law"]

CONTRACTED: Final = math.nextafter(1.0, 0.0)
"""The error bound of a contraction without a better proved bound: the largest float below 1."""
Payload = TypeVar("Payload")


class Codec(ABC, Generic[Payload]):
    """Encoder and decoder of one gradient. Abstract; subclasses are final."""

    id: ClassVar[str]
    """The name on the command line, in checkpoints and on the wire. Never reused or changed."""
    default_payload_type: ClassVar[type[Any]]
    """The frozen dataclass of tensors that a receiver rebuilds, unless `payload_type` differs."""
    default_granularity: ClassVar[Granularity]
    """The input of one `encode`, unless `granularity` differs."""
    memory: ClassVar[str | None] = None
    """The memory that the method was published with, where the laws do not imply one."""
    near_lossless: ClassVar[bool] = False
    """True if nearly all of every gradient is sent, so that error feedback delays almost
    nothing."""
    suits_adam: ClassVar[bool] = False
    """True if measured to lose less where Adam's update is compressed and not the gradient
    (docs/optimizers.md)."""
    contraction_setting: ClassVar[str] = ""
    """The setting that turns an unbiased codec into a contraction; empty if there is none."""
    votes: ClassVar[bool] = False
    """True if the aggregate is a majority vote, so that the learning rate alone sets the step's
    length."""
    batch_decodes: ClassVar[bool] = False
    """True if one `add_all` is faster than an `add_decoded` for each payload."""
    batch_decodes_on_gpu: ClassVar[bool] = False
    """True if `add_all` is faster on a GPU, with the bits of one `add_decoded` after another."""
    batch_encodes: ClassVar[bool] = False
    """True if one `encode_all` is faster than an `encode` for each gradient."""
    sparsifies: ClassVar[bool] = False
    """True if some entries are sent, and nothing of the others."""
    encodes_rows: ClassVar[bool] = False
    """True if `encode_rows` costs less where few rows are present, and `encode_accumulated` less
    than the addition of zeros."""
    accepts_half: ClassVar[bool] = False
    """True if every encoding method takes bfloat16 and float16 gradients without a float32 copy,
    with the bits that the copy would give."""
    shared_seed: ClassVar[bool] = False
    """True if all workers of a step must encode with the same seed."""

    def __post_init__(self) -> None:
        """Checks the types of the settings. A codec that has more to check calls this first.

        Raises:
            ConfigError: a setting is of another type than its field declares.
        """
        check_types(self)

    @property
    def granularity(self) -> Granularity:
        """The input of one `encode` in this configuration."""
        return self.default_granularity

    @property
    def payload_type(self) -> type[Any]:
        """The payload class of this configuration: a setting may change it."""
        return self.default_payload_type

    @property
    @abstractmethod
    def laws(self) -> frozenset[Law]:
        """The laws that this configuration obeys."""

    @property
    def error_bound(self) -> float:
        """The proved upper bound of E|C(g) - g|^2 / |g|^2 over all g; infinity if none is known.

        |.| is the Euclidean norm or the largest magnitude. The residual of error feedback is
        e' = g + e - C(g + e), so that |e'| <= sqrt(bound) (|g| + |e|): the residual is bounded if
        the bound is below 1, and may grow at every step otherwise.
        """
        if Law.LOSSLESS in self.laws:
            return 0.0
        return CONTRACTED if Law.CONTRACTION in self.laws else math.inf

    @abstractmethod
    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Payload:
        """Compresses `gradient`, which is left unchanged. The payload may be a view of it.

        Args:
            gradient: float32, or half precision where it `accepts_half`; at least one entry.
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
        """Encodes several gradients, and yields the payloads in their order.

        On the CPU the payloads are those of `encode`, bit for bit. Other devices draw the same
        random numbers, but batched linear algebra adds up in another order, so that rounding may
        differ.

        Args:
            gradients: on one device.
            generators: one for each, none twice.

        Raises:
            CodecError: a gradient cannot be encoded; raised in place of its payload.
        """
        for gradient, generator in zip(gradients, generators, strict=True):
            yield self.encode(gradient, generator)

    def encode_rows(self, gradient: RowGradient, generator: torch.Generator) -> Payload:
        """Encodes a matrix with few non-zero rows, as `encode` encodes the whole matrix.

        Args:
            gradient: a matrix with at least one entry; all its rows may be absent (zero).
            generator: as for `encode`.

        Raises:
            CodecError: as `encode` does.
        """
        whole = torch.zeros(gradient.shape, device=gradient.values.device)
        gradient.add_to(whole)
        return self.encode(whole, generator)

    @abstractmethod
    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        """Returns the bounds of each tensor of a payload for `shape`, in the order of fields."""

    @abstractmethod
    def add_decoded(
        self, payload: Payload, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        """Adds `scale` times the decoded gradient to `out`, in place.

        The payload may be on another device than `out`: frames are read on the CPU. In-place
        addition lets a master sum many workers without a dense copy for each.

        Raises:
            CodecError: the payload does not fit `out`, which is then unchanged. A payload may come
                from another machine, so it is checked here and never trusted.
        """

    def add_all(
        self, payloads: Sequence[Payload], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        """Adds `scale` times each of several decoded gradients to `out`, in place.

        Equals one `add_decoded` after another, except that a codec with `batch_decodes` may add in
        another order: then the last bits depend on the set of payloads, and on nothing else.

        Raises:
            CodecError: a payload does not fit `out`; other payloads may have been added already.
        """
        for payload in payloads:
            self.add_decoded(payload, out, scale)

    def add_parts(
        self,
        payloads: Sequence[Sequence[Payload]],
        out: Float[torch.Tensor, " n"],
        places: Sequence[range],
        shapes: Sequence[torch.Size],
        scale: float = 1.0,
    ) -> None:
        """Adds `scale` times the decoded gradients of several parts of a vector to it, in place.

        Equals `add_all` for each part. A codec with small payloads for each part overrides this
        method: the calls for each part then cost more than the work.

        Args:
            payloads: of each part, one for each sender.
            out: the vector.
            places: the entries of each part, which follow each other, with gaps or not.
            shapes: the shape of each part.
            scale: a factor on all gradients.

        Raises:
            CodecError: a payload does not fit its part; others may have been added already.
        """
        for own, place, shape in zip(payloads, places, shapes, strict=True):
            self.add_all(own, out[place.start : place.stop].view(shape), scale)

    def cost(self, payload: Payload, shape: torch.Size) -> DecodeCost:
        """Returns an upper bound on the cost of `decode`; arbitrary for a payload that is refused.

        Reads sizes and counts only, allocates nothing, and never raises. A codec that visits
        entries more often or needs more memory than most codecs overrides this method.
        """
        del payload
        return DecodeCost(VISITS * shape.numel(), BESIDE * shape.numel())

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Payload:
        """Runs one step of error feedback: adds `gradient` to `residual`, in place, encodes the
        sum, and subtracts the decoded payload from `residual`.

        A codec that needs fewer than these three passes over memory overrides this method.
        """
        return self.encode_accumulated(residual.add_(gradient), generator)

    def encode_accumulated(
        self, residual: Float[torch.Tensor, "*s"], generator: torch.Generator
    ) -> Payload:
        """Encodes `residual`, which includes the gradient, and subtracts the decoded payload."""
        payload = self.encode(residual, generator)
        self.add_decoded(payload, residual, -1.0)
        return payload

    def encode_momentum(
        self,
        gradient: Float[torch.Tensor, "*s"],
        momentum: MomentumState,
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Payload:
        """Runs one step of momentum correction: applies `momentum` to `gradient`, which is
        overwritten, and calls `encode_residual`. Masking then reduces the momentum of sent entries,
        as it would arrive late.

        A codec that sparsifies clears the momentum of the entries that it sent, as published. A
        codec that sends all entries at every step keeps the timely part of the momentum
        (`MomentumState.in_time`).

        A codec that needs fewer passes over memory overrides this method.
        """
        if not momentum.masking or self.sparsifies:
            payload = self.encode_residual(momentum.grow(gradient), residual, generator)
            if momentum.masking:
                self.clear_sent(payload, momentum.velocity.view(-1))
            return payload
        grown = momentum.grow(gradient)
        in_time = momentum.in_time(grown, residual)
        payload = self.encode_residual(grown, residual, generator)
        momentum.velocity.copy_(in_time)
        return payload

    def clear_sent(self, payload: Payload, entries: Float[torch.Tensor, " n"]) -> None:
        """Sets the entries of another vector to zero that a local payload contains, in place.

        Only for a codec that `sparsifies`. An entry counts as sent even if the codec of the values
        rounded its value to zero.
        """
        raise NotImplementedError(f"{self.id} sends all entries")

    def finish(self, mean: Float[torch.Tensor, "..."]) -> None:
        """Turns the mean of the workers' decoded gradients into the aggregate, in place.

        The default leaves the mean unchanged; codecs that vote override it.
        """

    @property
    def amplifies_noise(self) -> bool:
        """True if random errors lengthen the decoded gradient, so that steps must be damped."""
        return Law.UNBIASED in self.laws and Law.LOSSLESS not in self.laws

    @property
    def wire_codec(self) -> Codec[Any]:
        """The near-lossless codec that carries sums of addends, for codecs that are summable."""
        raise NotImplementedError(f"payloads of {self.id} do not add up")

    def addend(self, payload: Payload) -> Float[torch.Tensor, " k"]:
        """Returns the part of a payload that workers with one seed may sum, as float32.

        The result may be a view of the payload; a change of the result then spoils the payload.
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
            payload: the payload of any of these workers.
            total: the sum of the workers' addends.
            out: float32.
            scale: a factor on the sum.
        """
        del payload  # in most summable codecs the addend is the whole gradient
        out.add_(to_device(total, out.device).view(out.shape), alpha=scale)

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        """The codecs of the payload fields that are payloads themselves, by field name."""
        return {}

    def sections(self, payload: Payload) -> list[torch.Tensor]:
        """Returns the tensors of a payload, in the order of `fields`."""
        tensors: list[torch.Tensor] = []
        for name, value in vars(payload).items():
            tensors += self.inner[name].sections(value) if name in self.inner else [value]
        return tensors

    def assemble(self, sections: Iterator[torch.Tensor]) -> Payload:
        """Rebuilds a payload from the tensors of `sections`, and takes no further tensors."""
        inner = self.inner
        parts = [
            inner[name].assemble(sections) if name in inner else next(sections)
            for name in self.payload_names
        ]
        rebuilt: Payload = self.payload_type(*parts)
        return rebuilt

    @cached_property
    def payload_names(self) -> tuple[str, ...]:
        """The names of a payload's fields."""
        return tuple(field.name for field in fields(self.payload_type))

    def decode(self, payload: Payload, shape: torch.Size) -> Float[torch.Tensor, "..."]:
        """Rebuilds a float32 gradient of `shape` on its own."""
        out = torch.zeros(shape)
        self.add_decoded(payload, out)
        return out

    def __str__(self) -> str:
        """Returns the specification that `make_codec` turns into an equal codec."""
        settings = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)  # type: ignore[arg-type]  # every codec is a dataclass
            if getattr(self, field.name) != field.default
        ]
        return f"{self.id}({', '.join(settings)})" if settings else self.id
