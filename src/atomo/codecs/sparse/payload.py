"""Payload of all sparsifiers: the values of few entries, and their indices as Rice-coded gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from jaxtyping import Int64, UInt8

from atomo.codecs.base import Field
from atomo.codecs.cost import DecodeCost, read_count
from atomo.kernels import rice

__all__ = [
    "INDEX",
    "Sparse",
    "all_indices_of",
    "count_for",
    "index_cost",
    "index_fields",
    "indices_of",
    "indices_within",
]

INDEX: Final = 32  # bytes that an index and its value take while they are read


@dataclass(frozen=True)
class Sparse:
    """Some entries of a flattened gradient; with the codec `rows` some rows of a matrix."""

    count: Int64[torch.Tensor, " 1"]
    indices: UInt8[torch.Tensor, " bytes"]
    """The increasing indices after `kernels.rice`."""
    values: Any
    """The payload of the codec that codes them, of one zero where count is 0; or float32."""


def count_for(ratio: float, entries: int) -> int:
    """Returns the number of entries that a ratio stands for, at least 1."""
    return min(entries, max(1, round(ratio * entries)))


def index_fields(entries: int, max_count: int) -> tuple[Field, Field]:
    """Returns the bounds of the count and of at most `max_count` of `entries` indices."""
    return Field(torch.int64, (1,)), Field(torch.uint8, (rice.most_bytes(entries, max_count),))


def index_cost(payload: Sparse, max_count: int, size: int = 1) -> tuple[int, DecodeCost]:
    """Returns an upper bound on the number of indices, and the cost of reading the indices and
    adding their values.

    Args:
        payload: from an untrusted sender.
        max_count: indices that are accepted.
        size: values that belong to each.
    """
    # More than there are bits for is refused before anything else.
    count = min(read_count(payload.count), max_count, 8 * len(payload.indices))
    return count, DecodeCost(2 * count * size, INDEX * count * size)


def indices_of(payload: Sparse, entries: int, max_count: int) -> Int64[torch.Tensor, " k"]:
    """Reads the indices of the values, on the CPU.

    Raises:
        NotIndices: the payload is not one of at most `max_count` of `entries` indices.
    """
    return all_indices_of([payload], entries, max_count)[1]


def all_indices_of(
    payloads: Sequence[Sparse], entries: int, max_count: int
) -> tuple[list[int], Int64[torch.Tensor, " total"]]:
    """Reads the number of indices of each payload, and all indices concatenated, on the CPU.

    Raises:
        NotIndices: one of the payloads is not one of at most `max_count` of `entries` indices.
    """
    many = len(payloads)
    return indices_within(payloads, [range(entries)] * many, [max_count] * many)


def indices_within(
    payloads: Sequence[Sparse], places: Sequence[range], max_counts: Sequence[int]
) -> tuple[list[int], Int64[torch.Tensor, " total"]]:
    """Reads as `all_indices_of`, for payloads of several parts of a vector.

    Args:
        payloads: from untrusted senders.
        places: the entries of the part of each payload.
        max_counts: indices that are accepted, of each payload.

    Raises:
        NotIndices: a payload is not one of so many indices in its place.
    """
    counts = counts_of(payloads, places, max_counts)
    return counts, rice.decode_within([payload.indices for payload in payloads], counts, places)


def counts_of(
    payloads: Sequence[Sparse], places: Sequence[range], max_counts: Sequence[int]
) -> list[int]:
    """Reads the number of indices that each payload claims, at most that of `max_counts`."""
    for payload in payloads:
        if payload.count.shape != (1,):
            raise rice.NotIndices(f"{len(payload.count)} counts")
    counts: list[int] = torch.cat([payload.count for payload in payloads]).tolist()
    for count, place, most in zip(counts, places, max_counts, strict=True):
        if not 0 <= count <= most:
            raise rice.NotIndices(f"{count} indices; at most {most} of {len(place)}")
    return counts
