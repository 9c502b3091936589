"""Bytes close to their entropy: a Huffman code for a message, with a header of words.

Words 0 to 4 are the number of symbols coded, the form, and the sizes in words of the first three
of four streams; then 32 words of code lengths, four bits each, and the streams. The plain form has
the symbols themselves after the first five words. Five trits to a byte, nearly all trits 0, are
coded as gaps between those that are not (`kernels/gaps`).

The streams mark no start of a code but the first: `kernels/prefix` reads them in
parallel all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Int32, UInt8

from atomo.kernels.backends import backend_for
from atomo.kernels.entropy import cpu
from atomo.kernels.entropy.layout import CODED, GAPS, OVERHEAD, PLAIN, SHORTEST

__all__ = [
    "CODED",
    "DAMAGED_STREAM",
    "GAPS",
    "OVERHEAD",
    "PLAIN",
    "backend",
    "compress",
    "decompress",
    "decompress_all",
]

DAMAGED_STREAM: Final = 255
"""The first symbol of a message for a device, if its streams are damaged."""

backend = backend_for(__name__, "cpu", "reference", "cuda")


def compress(
    symbols: UInt8[torch.Tensor, " n"], coded: bool = True, trits: bool = False
) -> Int32[torch.Tensor, " words"]:
    """Encodes a message of at least one symbol to words, the same on every device.

    The words are on the device of the symbols or on the CPU.

    Args:
        symbols: the message.
        coded: whether to try anything at all.
        trits: whether the symbols up to 242 are five trits each.
    """
    return backend(symbols).compress(symbols, coded and len(symbols) >= SHORTEST, trits)


def decompress(words: Int32[torch.Tensor, " words"], count: int) -> UInt8[torch.Tensor, " n"]:
    """Decodes the `count` symbols of an untrusted message, on the CPU.

    Raises:
        ValueError: these words are no message of as many symbols.
    """
    return cpu.decompress(words, count)


def decompress_all(
    words: Sequence[Int32[torch.Tensor, " _"]], count: int, device: torch.device
) -> list[UInt8[torch.Tensor, " n"]]:
    """Decodes several messages on a device, for readers that refuse DAMAGED_STREAM as a symbol.

    A device may still be reading the streams when this returns. It marks a damaged stream by
    DAMAGED_STREAM as the first symbol, so that the host does not wait for a flag.

    Raises:
        ValueError: some words are no message of as many symbols.
    """
    return backend(torch.empty(0, device=device)).decompress_all(words, count, device)
