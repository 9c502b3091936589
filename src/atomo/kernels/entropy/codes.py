"""Codes of messages: code lengths from symbol counts, codes from lengths, and tables.

D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952. Codes are
canonical: their lengths determine them, and only lengths are sent.
"""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["MAX_CODE_BITS", "canonical_codes", "code_lengths", "decode_table", "pair_table"]

Counts = NDArray[np.int64]
Words = NDArray[np.uint32]
MAX_CODE_BITS = 12  # bits of a code; a refill of the decoder holds at least two codes
SLOTS = 1 << MAX_CODE_BITS
SYMBOLS = 256


@jit
def code_lengths(counts: Counts) -> Counts:
    """Computes the lengths of a complete prefix code, none above MAX_CODE_BITS; 0 for a symbol
    that never occurs.

    The code is Huffman's if that is short enough. A message of one symbol gets a second symbol, so
    that the code is complete.
    """
    lengths = np.zeros(SYMBOLS, np.int64)
    order = np.argsort(counts)
    first = 0
    while first < SYMBOLS - 2 and counts[order[first]] == 0:
        first += 1
    depths = tree_depths(counts[order[first:]])
    fill_slots(depths)
    for i in range(depths.size):
        lengths[order[first + i]] = depths[i]
    return lengths


@jit
def tree_depths(rising: Counts) -> Counts:
    """Returns the depth of each leaf of Huffman's tree over 2 or more leaves of rising weights."""
    leaves = rising.size
    weights = np.zeros(2 * leaves, np.int64)
    for i in range(leaves):  # a slice takes numba three seconds more to compile
        weights[i] = rising[i]
    parents = np.zeros(2 * leaves, np.int64)
    # Each inner node is at least as heavy as the inner node before it, so that leaves and inner
    # nodes are two sorted queues and no heap is needed (van Leeuwen, 1976).
    leaf, node = 0, leaves
    for made in range(leaves, 2 * leaves - 1):
        for _ in range(2):  # the lighter of the next leaf and the next inner node
            if leaf < leaves and (node >= made or weights[leaf] <= weights[node]):
                chosen = leaf
                leaf += 1
            else:
                chosen = node
                node += 1
            weights[made] += weights[chosen]
            parents[chosen] = made
    depths = np.zeros(2 * leaves, np.int64)
    # The root is the last node made, and every parent is made after its children.
    for i in range(2 * leaves - 3, -1, -1):
        depths[i] = depths[parents[i]] + 1
    return depths[:leaves]


@jit
def fill_slots(depths: Counts) -> None:
    """Makes depths, rarest first, lengths of a complete code of at most LONGEST bits, in place.

    A code of l bits takes 2^(LONGEST - l) slots of the decoder's table; a code is complete where
    all slots are taken, which is Kraft's inequality as an equality.
    """
    used = 0
    for i in range(depths.size):
        depths[i] = min(depths[i], MAX_CODE_BITS)
        used += SLOTS >> depths[i]
    i = 0
    while used > SLOTS:  # the rarest pay for the codes that were cut
        if depths[i] < MAX_CODE_BITS:
            depths[i] += 1
            used -= SLOTS >> depths[i]
        else:
            i += 1
    while used < SLOTS:  # and the most frequent that fit take the remaining slots
        for i in range(depths.size - 1, -1, -1):
            if depths[i] > 1 and used + (SLOTS >> depths[i]) <= SLOTS:
                used += SLOTS >> depths[i]  # one bit less: twice the slots, so as many again
                depths[i] -= 1


@jit
def canonical_codes(lengths: Counts) -> Counts:
    """Returns each symbol's code, first bit lowest; -1s if the lengths make no complete code."""
    codes = np.zeros(SYMBOLS, np.int64)
    used, longest = 0, np.int64(0)
    for symbol in range(SYMBOLS):
        longest = max(longest, lengths[symbol])
    for length in range(1, MAX_CODE_BITS + 1):
        for symbol in range(SYMBOLS):
            if lengths[symbol] == length:
                # The slots so far, as a fraction of all, are the code. Streams are read from the
                # lowest bit on, so it is mirrored.
                prefix = used >> (MAX_CODE_BITS - length)
                for bit in range(length):
                    codes[symbol] |= ((prefix >> bit) & 1) << (length - 1 - bit)
                used += SLOTS >> length
        if used > SLOTS:
            break
    if used != SLOTS or longest > MAX_CODE_BITS:
        codes[:] = -1
    return codes


@jit
def decode_table(lengths: Counts) -> Words:
    """Returns the symbols for each value of the next MAX_CODE_BITS bits; empty for a bad code.

    A slot has one or two symbols in its lowest bytes; from bit 16 on the bits of all its codes,
    from bit 21 on the bits of the first code, and from bit 25 on the number of symbols.
    """
    codes = canonical_codes(lengths)
    if codes[0] < 0:
        return np.empty(0, np.uint32)
    single = np.empty(SLOTS, np.uint32)
    for symbol in range(SYMBOLS):
        if lengths[symbol]:
            # With any bits after a code: the code is the lowest bits of the slot.
            for slot in range(codes[symbol], SLOTS, 1 << lengths[symbol]):
                single[slot] = symbol | lengths[symbol] << 8
    table = np.empty(SLOTS, np.uint32)
    for slot in range(SLOTS):
        first = np.int64(single[slot])
        cost = first >> 8
        second = np.int64(single[slot >> cost])
        total = cost + (second >> 8)
        if total <= MAX_CODE_BITS:  # else the second code has bits that this slot does not know
            table[slot] = first & 255 | (second & 255) << 8 | total << 16 | cost << 21 | 2 << 25
        else:
            table[slot] = first & 255 | cost << 16 | cost << 21 | 1 << 25
    return table


@jit
def pair_table(codes: Counts, lengths: Counts) -> Words:
    """Returns the joined codes of any two symbols that occur, and from bit 24 on their length."""
    table = np.zeros(SYMBOLS * SYMBOLS, np.uint32)
    used = np.nonzero(lengths)[0]
    for second in used:
        for first in used:
            code = codes[first] | codes[second] << lengths[first]
            table[first | second << 8] = code | (lengths[first] + lengths[second]) << 24
    return table
