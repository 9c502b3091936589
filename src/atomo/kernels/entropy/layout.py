"""The words of a coded message: their meaning and their checks. All backends use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Int32, Int64, UInt8, UInt32

from atomo.kernels.entropy import codes
from atomo.kernels.gaps import ZEROS

__all__ = [
    "BLOCK",
    "CODED",
    "EACH",
    "GAPS",
    "HEADER",
    "OVERHEAD",
    "PLAIN",
    "SAMPLED",
    "SHORTEST",
    "STREAMS",
    "SYMBOLS",
    "TABLE",
    "Streams",
    "checked",
    "head_of",
    "lengths_for",
    "longer_than_plain",
    "prefers_gaps",
    "quarter_of",
]

PLAIN, CODED, GAPS = 0, 1, 3
STREAMS: Final = 4
SYMBOLS: Final = 256
HEADER: Final = 5  # words
TABLE: Final = 32  # words
OVERHEAD: Final = HEADER + TABLE  # words above a quarter of the number of symbols, at most
SHORTEST: Final = 4 * TABLE  # symbols: below it the table alone is larger
SAMPLED: Final = 2**17  # from so many symbols on an eighth is counted as a sample
EACH: Final = 8
BLOCK: Final = 2**9  # symbols that are counted, of EACH times as many: some of each large layer
WORTH: Final = 0.99  # of the plain size: a code that is longer costs more time than it saves
OFTEN: Final = 0.5  # of the bytes are five zeros: from there on, gaps are the smaller


@dataclass(frozen=True)
class Streams:
    """A coded message, once its sizes are seen to fit."""

    form: int
    tokens: int  # how many symbols are coded
    body: UInt32[np.ndarray, " words"]  # the streams, one after the other
    sizes: Int64[np.ndarray, " 4"]  # their words
    table: UInt32[np.ndarray, " slots"]  # of the decoder


def quarter_of(tokens: int) -> int:
    """Returns the symbols in each stream; the last streams may have fewer, or none."""
    return (tokens + STREAMS - 1) // STREAMS


def prefers_gaps(counts: Int64[np.ndarray, " 256"]) -> bool:
    """Returns True if enough bytes are five zeros for gaps to be smaller."""
    return bool(counts[ZEROS] > OFTEN * counts.sum())


def lengths_for(
    counts: Int64[np.ndarray, " 256"], tokens: int, symbols: int
) -> Int64[np.ndarray, " 256"] | None:
    """Returns the code lengths for tokens with these counts; None where the plain form is better.

    Args:
        counts: the number of each symbol, exact or estimated.
        tokens: the number of tokens.
        symbols: the number of symbols of the message.
    """
    lengths: Int64[np.ndarray, " 256"] = codes.code_lengths(counts)
    bits = float((lengths * counts).sum() / counts.sum()) * tokens
    return None if bits / 32 + OVERHEAD >= WORTH * symbols / 4 else lengths


def longer_than_plain(sizes: Int64[np.ndarray, " 4"], symbols: int) -> bool:
    """Returns True if streams of these words need more room than the symbols themselves.

    A code for the sample of a long message may be a bad code for the rest: in a gradient each layer
    has its own symbols.
    """
    return OVERHEAD + int(sizes.sum()) > HEADER + (symbols + 3) // 4


def head_of(
    tokens: int, form: int, sizes: Int64[np.ndarray, " 4"], lengths: Int64[np.ndarray, " 256"]
) -> Int32[np.ndarray, " head"]:
    """Returns the words before the streams."""
    words = np.empty(OVERHEAD, np.int32)
    words[:HEADER] = tokens, form, *sizes[:3]
    pairs = lengths.astype(np.uint8).reshape(-1, 2)
    words[HEADER:].view(np.uint8)[:] = pairs[:, 0] | pairs[:, 1] << 4
    return words


def checked(
    array: Int32[np.ndarray, " words"], count: int
) -> Streams | UInt8[np.ndarray, " count"]:
    """Returns the symbols of a plain message, or the streams of a coded message.

    Raises:
        ValueError: these words are no message of as many symbols.
    """
    if array.size < HEADER:
        raise ValueError(f"{array.size} words; at least {HEADER}")
    tokens, form = int(array[0]), int(array[1])
    if form == PLAIN and tokens == count and array.size == HEADER + (count + 3) // 4:
        return array[HEADER:].view(np.uint8)[:count]
    max_tokens = {CODED: count, GAPS: 5 * count}.get(form, 0)
    if not 1 <= tokens <= max_tokens or (form == CODED and tokens != count):
        raise ValueError(f"{tokens} symbols in form {form}, and {count} are expected")
    return streams_of(array, tokens, form)


def streams_of(array: Int32[np.ndarray, " words"], tokens: int, form: int) -> Streams:
    """Splits the coded form into its parts."""
    body = array[OVERHEAD:].view(np.uint32)
    first = [int(size) for size in array[2:HEADER]]
    sizes = np.array([*first, body.size - sum(first)], np.int64)
    # Each symbol has a bit at least, so that few words cannot claim to be many symbols.
    if array.size <= OVERHEAD or (sizes < 0).any() or tokens > 32 * body.size:
        raise ValueError(f"streams of {sizes.tolist()} words for {tokens} symbols")
    pairs = array[HEADER:OVERHEAD].view(np.uint8)
    table = codes.decode_table(np.stack([pairs & 15, pairs >> 4], 1).astype(np.int64).ravel())
    if not table.size:
        raise ValueError("a damaged code")
    return Streams(form, tokens, body, sizes, table)
