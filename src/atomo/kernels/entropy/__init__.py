"""Bytes close to their entropy: a Huffman code for a message, in words that say how to read them.

Words 0 to 4 are the number of symbols coded, the form, and the sizes in words of the first three
of four streams; then 32 words of code lengths, four bits each, and the streams. The plain form has
the symbols themselves behind the first five words. Five trits to a byte, nearly all of them 0, are
coded as gaps between those that are not. Whoever packs a frame does so on the host, so there is no
version for devices: their messages come to the host here.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from jaxtyping import Int32, Int64, UInt8

from atomo.kernels.entropy import codes, huffman
from atomo.kernels.entropy import numba_way as loops

__all__ = ["OVERHEAD", "compress", "decompress"]

PLAIN, CODED, GAPS = 0, 1, 3
HEADER: Final = 5  # words
TABLE: Final = 32  # words
OVERHEAD: Final = HEADER + TABLE  # words above a quarter of the number of symbols, at most
SHORTEST: Final = 4 * TABLE  # symbols: below it the table alone is larger
SAMPLED: Final = 2**17  # symbols from which on an eighth of them stands for all
BLOCK: Final = 2**12
WORTH: Final = 0.99  # of the plain size: a code that is longer costs more time than it saves
OFTEN: Final = 0.5  # of the bytes are five zeros: from there on, gaps are the smaller


def compress(
    symbols: UInt8[torch.Tensor, " n"], coded: bool = True, trits: bool = False
) -> Int32[torch.Tensor, " words"]:
    """The words of a message of at least one symbol.

    Args:
        symbols: the message.
        coded: whether to try anything at all.
        trits: whether the symbols up to 242 are five trits each.
    """
    tokens, form = symbols.cpu().numpy(), CODED
    if not coded or len(tokens) < SHORTEST:
        return torch.from_numpy(stored(tokens))
    counts = frequencies(tokens)
    if trits and counts[loops.ZEROS] > OFTEN * counts.sum():
        gaps = loops.trits_to_gaps(tokens)
        if gaps.size:
            tokens, form, counts = gaps, GAPS, frequencies(gaps)
    lengths = codes.code_lengths(counts)
    bits = float((lengths * counts).sum() / counts.sum()) * tokens.size
    if bits / 32 + OVERHEAD >= WORTH * len(symbols) / 4:
        return torch.from_numpy(stored(symbols.cpu().numpy()))
    return torch.from_numpy(encoded(tokens, lengths, form))


def frequencies(symbols: UInt8[np.ndarray, " n"]) -> Int64[np.ndarray, " 256"]:
    """How often each symbol occurs, or about so in a long message."""
    if symbols.size < SAMPLED:
        return np.asarray(loops.histogram(symbols, symbols.size, symbols.size))
    return np.asarray(loops.histogram(symbols, BLOCK, 8 * BLOCK) * 8 + loops.present(symbols))


def stored(symbols: UInt8[np.ndarray, " n"]) -> Int32[np.ndarray, " words"]:
    """The plain form."""
    words = np.zeros(HEADER + (symbols.size + 3) // 4, np.int32)
    words[:2] = symbols.size, PLAIN
    words[HEADER:].view(np.uint8)[: symbols.size] = symbols
    return words


def encoded(
    tokens: UInt8[np.ndarray, " n"], lengths: Int64[np.ndarray, " 256"], form: int
) -> Int32[np.ndarray, " words"]:
    """The coded form."""
    room = (tokens.size + 3) // 4 * codes.LONGEST // 32 + 2
    streams = np.empty(4 * room, np.uint32)
    sizes = huffman.encode_words(tokens, lengths, streams)
    words = np.empty(OVERHEAD + int(sizes.sum()), np.int32)
    words[:HEADER] = tokens.size, form, *sizes[:3]
    pairs = lengths.astype(np.uint8).reshape(-1, 2)
    words[HEADER:OVERHEAD].view(np.uint8)[:] = pairs[:, 0] | pairs[:, 1] << 4
    start = OVERHEAD
    for number, size in enumerate(sizes):
        part = streams[number * room : number * room + size]
        words[start : start + size] = part.view(np.int32)
        start += int(size)
    return words


def decompress(words: Int32[torch.Tensor, " words"], count: int) -> UInt8[torch.Tensor, " n"]:
    """The `count` symbols of a message, which may come from anyone.

    Raises:
        ValueError: these words are no message of as many symbols.
    """
    array = words.cpu().numpy()
    if array.size < HEADER:
        raise ValueError(f"{array.size} words; at least {HEADER}")
    tokens, form = int(array[0]), int(array[1])
    if form == PLAIN and tokens == count and array.size == HEADER + (count + 3) // 4:
        return torch.from_numpy(array[HEADER:].view(np.uint8)[:count])
    most = {CODED: count, GAPS: 5 * count}.get(form, 0)
    if not 1 <= tokens <= most or (form == CODED and tokens != count):
        raise ValueError(f"{tokens} symbols in form {form}, and {count} are expected")
    decoded = decoded_streams(array, tokens)
    if form == CODED:
        return torch.from_numpy(decoded)
    symbols = np.empty(count, np.uint8)
    if not loops.gaps_to_trits(decoded, symbols):
        raise ValueError(f"gaps beyond {count} symbols")
    return torch.from_numpy(symbols)


def decoded_streams(array: Int32[np.ndarray, " words"], tokens: int) -> UInt8[np.ndarray, " n"]:
    """The symbols of the coded form."""
    body = array[OVERHEAD:].view(np.uint32)
    first = [int(size) for size in array[2:HEADER]]
    sizes = np.array([*first, body.size - sum(first)], np.int64)
    # Each symbol has a bit at least, so that few words cannot claim to be many symbols.
    if array.size <= OVERHEAD or (sizes < 0).any() or tokens > 32 * body.size:
        raise ValueError(f"streams of {sizes.tolist()} words for {tokens} symbols")
    pairs = array[HEADER:OVERHEAD].view(np.uint8)
    table = codes.decode_table(np.stack([pairs & 15, pairs >> 4], 1).astype(np.int64).ravel())
    symbols = np.empty(tokens, np.uint8)
    if not table.size or not huffman.decode_words(body, sizes, table, symbols):
        raise ValueError("a damaged code or stream")
    return symbols
