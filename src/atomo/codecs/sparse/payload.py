"""What all sparsifiers send: a few values, and where they belong as Rice-coded gaps.

Another codec may code the values; what it loses counts as not sent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Size, Tensor

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.cost import Cost, number
from atomo.codecs.flat import add_flat
from atomo.errors import CodecError, ConfigError
from atomo.kernels import rice, select

__all__ = [
    "SCOPES",
    "Sparse",
    "Sparsifier",
    "add_sparse",
    "assemble",
    "check_ratio",
    "check_scope",
    "clear_sent",
    "feed_back",
    "finding",
    "indices_of",
    "pack",
    "sparse_cost",
    "sparse_fields",
    "sparse_laws",
    "wanted",
]


INDEX: Final = 32  # bytes that an index and its value take while they are read


SCOPES: Final = MappingProxyType({"layer": Unit.MATRIX, "bucket": Unit.ENTRIES})


@dataclass(frozen=True)
class Sparse:
    """Some entries of a flattened gradient."""

    count: Int64[Tensor, " 1"]
    indices: UInt8[Tensor, " bytes"]
    """What `kernels.rice` made of the increasing indices."""
    values: Any
    """float32, or the payload of the codec that codes them: one zero where count is 0."""


@runtime_checkable
class Sparsifier(Protocol):
    """A codec whose payload says which entries it carries."""

    def clear_sent(self, payload: Any, entries: Float[Tensor, " n"]) -> None:
        """Makes those entries of another vector zero that the payload carries, in place."""


def check_ratio(codec: str, ratio: float) -> None:
    """Raises ConfigError where `ratio` is no share of the entries."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"{codec}: ratio must be above 0 and at most 1, got {ratio}")


def check_scope(codec: str, scope: str) -> None:
    """Raises ConfigError where `scope` is none of SCOPES."""
    if scope not in SCOPES:
        raise ConfigError(f"{codec}: scope must be one of {', '.join(SCOPES)}; got {scope!r}")


def wanted(ratio: float, entries: int) -> int:
    """How many of `entries` a ratio stands for, at least 1."""
    return min(entries, max(1, round(ratio * entries)))


def pack(
    codec: str,
    indices: Int64[Tensor, " k"],
    found: Float[Tensor, " k"],
    entries: int,
    values: Codec[Any] | None,
    generator: Generator,
) -> Sparse:
    """The payload of entries that were found.

    Args:
        codec: the id of the codec that found them.
        indices: increasing, below `entries`.
        found: their values.
        entries: of the whole gradient.
        values: codes the values.
        generator: what `values` draws from.
    """
    count = torch.tensor([len(found)])
    packed = rice.encode(indices, entries)
    if values is None:
        return Sparse(count, packed, found)
    try:
        coded = values.encode(found if len(found) else found.new_zeros(1), generator)
    except CodecError as error:
        raise CodecError(f"{codec}: values: {error}") from error
    return Sparse(count, packed, coded)


def feed_back(
    payload: Sparse,
    indices: Int64[Tensor, " k"],
    found: Float[Tensor, " k"],
    kept: Float[Tensor, " n"],
    values: Codec[Any] | None,
) -> None:
    """Leaves in `kept`, at the entries that were sent, what was lost of them: in place."""
    if values is None:
        kept[indices] = 0
    elif len(found):
        lost = found.clone()
        values.add_decoded(payload.values, lost, -1.0)
        kept[indices] = lost


def assemble(sections: Iterator[Tensor], values: Codec[Any] | None) -> Sparse:
    """A payload from the tensors of a frame."""
    count, indices = next(sections), next(sections)
    return Sparse(count, indices, next(sections) if values is None else values.assemble(sections))


def sparse_fields(
    entries: int, most: int, values: Codec[Any] | None, size: int = 1
) -> tuple[Field, ...]:
    """The bounds of `Sparse` for at most `most` of `entries` indices with `size` values each."""
    head = (
        Field(torch.int64, (1,)),
        Field(torch.uint8, (rice.most_bytes(entries, most),)),
    )
    if values is None:
        return *head, Field(torch.float32, (most * size,))
    return head + values.fields(Size([max(1, most)]))


def sparse_cost(payload: Sparse, most: int, values: Codec[Any] | None, size: int = 1) -> Cost:
    """What it takes to read at most `most` indices with `size` values each, and to add them."""
    # More than there are bits for is refused before anything else.
    count = min(number(payload.count), most, 8 * len(payload.indices))
    plain = Cost(2 * count * size, INDEX * count * size)
    if values is None:
        return plain
    return plain + values.cost(payload.values, Size([max(1, count)]))


def sparse_laws(values: Codec[Any] | None) -> frozenset[Law]:
    """Contracting, unless what codes the values may throw them farther off than zero is."""
    contracting = values is None or Law.CONTRACTION in values.laws
    return frozenset({Law.CONTRACTION} if contracting else ())


def indices_of(payload: Sparse, entries: int, most: int) -> Int64[Tensor, " k"]:
    """Where the values belong.

    Raises:
        ValueError: the payload is not one of at most `most` of `entries` indices.
    """
    if payload.count.shape != (1,):
        raise ValueError(f"{len(payload.count)} counts")
    count = int(payload.count)
    if not 0 <= count <= most:
        raise ValueError(f"{count} indices; at most {most} of {entries}")
    return rice.decode(payload.indices, count, entries)


def values_of(
    payload: Sparse, count: int, values: Codec[Any] | None, like: Tensor
) -> Float[Tensor, " k"]:
    """The values, decoded.

    Raises:
        ValueError: they are not `count`.
    """
    if values is None:
        found: Tensor = payload.values
    else:
        found = like.new_zeros(max(1, count))
        try:
            values.add_decoded(payload.values, found)
        except CodecError as error:
            raise ValueError(f"values: {error}") from error
        found = found[:count]
    if len(found) != count:
        raise ValueError(f"{len(found)} values for {count} indices")
    return found


def add_sparse(
    codec: str,
    payload: Sparse,
    most: int,
    values: Codec[Any] | None,
    out: Float[Tensor, "..."],
    scale: float,
) -> None:
    """Adds `scale` times the values to their entries of `out`, in place.

    Raises:
        CodecError: the payload does not fit; `out` is unchanged.
    """

    def add(entries: Float[Tensor, " n"]) -> None:
        indices = indices_of(payload, len(entries), most)
        found = values_of(payload, len(indices), values, entries)
        select.add_at(entries, indices, found, scale)

    add_flat(out, codec, add)


def clear_sent(payload: Sparse, entries: Float[Tensor, " n"]) -> None:
    """Makes the entries zero that a payload of our own carries, in place."""
    entries[indices_of(payload, len(entries), len(entries)).to(entries.device)] = 0


def finding(codec: str, find: Callable[[], select.Found]) -> select.Found:
    """What `find` finds; its ValueError as a CodecError."""
    try:
        return find()
    except ValueError as error:
        raise CodecError(f"{codec}: the gradient holds {error}") from error
