"""Sorted index sets as bytes: Golomb-Rice codes of their gaps. The contract of all backends.

A stream of bits, lowest first. Every 512 gaps (index - previous index - 1) begin with a parameter r
of 5 bits. A gap g is g >> r zeros, a one and the r low bits of g; where these would be 24 zeros or
more, it is 24 zeros, a one and g in 48 bits.

S. W. Golomb, "Run-length encodings", 1966; R. F. Rice, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from atomo.kernels.backends import backend_for
from atomo.kernels.rice import cpu as loops

__all__ = [
    "NotIndices",
    "backend",
    "decode",
    "decode_all",
    "decode_within",
    "encode",
    "most_bytes",
    "pack",
]

backend = backend_for(__name__, "cpu", "reference", "cuda")

LARGEST = 2**loops.WIDE


class NotIndices(ValueError):
    """Error: bytes or a count do not encode a valid set of indices below the number of entries."""


def most_bytes(entries: int, count: int) -> int:
    """Returns an upper bound on the bytes of a set of at most `count` out of `entries` indices."""
    if not count:
        return 0
    # r zeros and a one: S / 2^r + k (r + 1) <= k (log2(n / k) + 3); at most one gap in 12 escapes.
    bits = count * (math.log2(max(entries / count, 1.0)) + 8) + 5 * (count // loops.BLOCK + 1)
    return int(bits / 8) + 17


def encode(indices: Int64[torch.Tensor, " k"], entries: int) -> UInt8[torch.Tensor, " bytes"]:
    """Encodes strictly increasing indices below `entries`; does not check them.

    Raises:
        ValueError: `entries` is above 2^48.
    """
    if entries > LARGEST:
        raise ValueError(f"{entries} entries; at most {LARGEST}")
    return pack(indices, most_bytes(entries, len(indices)))


def pack(indices: Int64[torch.Tensor, " k"], room: int) -> UInt8[torch.Tensor, " bytes"]:
    """Encodes indices that take at most `room` bytes, on the CPU."""
    return backend(indices).pack(indices, room)


def decode(
    data: UInt8[torch.Tensor, " bytes"], count: int, entries: int
) -> Int64[torch.Tensor, " count"]:
    """Decodes the indices of untrusted bytes, on the CPU.

    Args:
        data: bytes from anywhere.
        count: the expected number of indices.
        entries: a bound that all indices are below.

    Raises:
        NotIndices: `data` does not hold exactly `count` increasing indices below `entries`.
    """
    return decode_all([data], [count], entries)


def decode_all(
    data: Sequence[UInt8[torch.Tensor, " _"]], counts: Sequence[int], entries: int
) -> Int64[torch.Tensor, " total"]:
    """Decodes several sets and concatenates their indices; otherwise as `decode`."""
    return decode_within(data, counts, [range(entries)] * len(data))


def decode_within(
    data: Sequence[UInt8[torch.Tensor, " _"]], counts: Sequence[int], places: Sequence[range]
) -> Int64[torch.Tensor, " total"]:
    """Decodes several sets, each of indices from the start of its place, as indices in its place.

    Args:
        data: bytes from anywhere, of each set.
        counts: the expected number of indices of each set.
        places: the entries of each set, with a step of 1.

    Raises:
        NotIndices: bytes do not hold exactly so many increasing indices in their place.
    """
    sizes = [part.numel() for part in data]
    for size, count, place in zip(sizes, counts, places, strict=True):
        if not 0 <= count <= min(len(place), 8 * size) or place.stop > LARGEST:
            raise NotIndices(f"{count} of {len(place)} indices in {size} bytes")
    # Whole words, and the words after them that a reader loads before it finds the end.
    behind = torch.zeros(32 - sum(sizes) % 8, dtype=torch.uint8)
    words = torch.cat([*data, behind.to(data[0].device)]).cpu().numpy().view(np.uint64)
    bounds = [place.start for place in places], [place.stop for place in places]
    indices = np.empty(sum(counts), np.int64)
    bad = loops.decode_all(words, *np.array([sizes, counts, *bounds], np.int64), indices)
    if bad >= 0:
        raise NotIndices(
            f"{sizes[bad]} bytes are not {counts[bad]} indices below {len(places[bad])}"
        )
    return torch.from_numpy(indices)
