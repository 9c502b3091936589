"""Huffman codes for messages on the CPU. Contracts and format: `kernels/entropy`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int32, Int64, UInt8

from atomo.kernels.entropy import codes, counting, huffman, layout
from atomo.kernels.gaps import cpu as gaps

__all__ = ["compress", "decompress", "decompress_all"]


def compress(symbols: torch.Tensor, coded: bool = True, trits: bool = False) -> torch.Tensor:
    entries, tokens, form = symbols.numpy(), symbols.numpy(), layout.CODED
    if not coded:
        return torch.from_numpy(stored(entries))
    counts = frequencies(tokens)
    if trits and layout.prefers_gaps(counts):
        gap_codes = gaps.trits_to_gaps(tokens)
        if gap_codes.size:
            tokens, form, counts = gap_codes, layout.GAPS, frequencies(gap_codes)
    lengths = layout.lengths_for(counts, tokens.size, entries.size)
    words = None if lengths is None else encoded(tokens, lengths, form, entries.size)
    return torch.from_numpy(stored(entries) if words is None else words)


def frequencies(symbols: UInt8[np.ndarray, " n"]) -> Int64[np.ndarray, " 256"]:
    """Counts each symbol; in a long message approximately."""
    if symbols.size < layout.SAMPLED:
        return np.asarray(counting.symbol_histogram(symbols, symbols.size, symbols.size))
    sampled = counting.symbol_histogram(symbols, layout.BLOCK, layout.EACH * layout.BLOCK)
    return np.asarray(sampled * layout.EACH + counting.present(symbols))


def stored(symbols: UInt8[np.ndarray, " n"]) -> Int32[np.ndarray, " words"]:
    """Builds the plain form."""
    words = np.zeros(layout.HEADER + (symbols.size + 3) // 4, np.int32)
    words[:2] = symbols.size, layout.PLAIN
    words[layout.HEADER :].view(np.uint8)[: symbols.size] = symbols
    return words


def encoded(
    tokens: UInt8[np.ndarray, " n"], lengths: Int64[np.ndarray, " 256"], form: int, symbols: int
) -> Int32[np.ndarray, " words"] | None:
    """Builds the coded form; None where the plain form of the `symbols` is shorter."""
    room = layout.quarter_of(tokens.size) * codes.MAX_CODE_BITS // 32 + 2
    streams = np.empty(layout.STREAMS * room, np.uint32)
    sizes = huffman.encode_words(tokens, lengths, streams)
    if layout.longer_than_plain(sizes, symbols):
        return None
    words = np.empty(layout.OVERHEAD + int(sizes.sum()), np.int32)
    words[: layout.OVERHEAD] = layout.head_of(tokens.size, form, sizes, lengths)
    start = layout.OVERHEAD
    for number, size in enumerate(sizes):
        part = streams[number * room : number * room + size]
        words[start : start + size] = part.view(np.int32)
        start += int(size)
    return words


def decompress_all(
    words: Sequence[torch.Tensor], count: int, device: torch.device
) -> list[torch.Tensor]:
    return [decompress(message, count) for message in words]


def decompress(words: torch.Tensor, count: int) -> torch.Tensor:
    message = layout.checked(words.cpu().numpy(), count)
    if not isinstance(message, layout.Streams):
        return torch.from_numpy(message)
    tokens = np.empty(message.tokens, np.uint8)
    if not huffman.decode_words(message.body, message.sizes, message.table, tokens):
        raise ValueError("a damaged stream")
    if message.form == layout.CODED:
        return torch.from_numpy(tokens)
    symbols = np.empty(count, np.uint8)
    if not gaps.gaps_to_trits(tokens, symbols):
        raise ValueError(f"gaps beyond {count} symbols")
    return torch.from_numpy(symbols)
