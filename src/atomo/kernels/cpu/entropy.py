"""Huffman coding of bytes at memory speed: one static code per message, four streams at once.

A decoder waits for each symbol's length before it can find the next symbol. Four independent
streams fill that wait. Words of 32 bits, never fewer, go in and out.
"""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit

__all__ = [
    "code_lengths",
    "decode_table",
    "decode_words",
    "encode_words",
    "gaps_to_trits",
    "histogram",
    "present",
    "trits_to_gaps",
]

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
Words = NDArray[np.uint32]
LONGEST = 12  # bits of a code; two of them fit in what a refill guarantees
SLOTS = 1 << LONGEST
SYMBOLS = 256
ZEROS = 121  # five trits, all 0
LONGEST_GAP = 126
FAR = 2 * LONGEST_GAP


@jit
def histogram(symbols: Bytes, block: int, stride: int) -> Counts:
    """How often each byte occurs in the first `block` of every `stride` bytes."""
    counts = np.zeros((4, SYMBOLS), np.int64)
    start = 0
    while start < symbols.size:
        stop = min(start + block, symbols.size)
        whole = start + (stop - start) // 4 * 4
        # Equal neighbours would wait for each other's count; in four tables they do not.
        for i in range(start, whole, 4):
            counts[0, symbols[i]] += 1
            counts[1, symbols[i + 1]] += 1
            counts[2, symbols[i + 2]] += 1
            counts[3, symbols[i + 3]] += 1
        for i in range(whole, stop):
            counts[0, symbols[i]] += 1
        start += stride
    total: Counts = counts.sum(axis=0)
    return total


@jit
def present(symbols: Bytes) -> Counts:
    """1 for each byte that occurs, else 0."""
    seen = np.zeros(SYMBOLS, np.int64)
    for i in range(symbols.size):
        seen[symbols[i]] = 1
    return seen


@jit
def code_lengths(counts: Counts) -> Counts:
    """Lengths of a complete prefix code, none above LONGEST; 0 for what never occurs.

    Huffman's code where that is short enough. A message of one symbol gets a second one, so that
    the code is complete.
    """
    lengths = np.zeros(SYMBOLS, np.int64)
    order = np.argsort(counts)
    first = 0
    while first < SYMBOLS - 2 and counts[order[first]] == 0:
        first += 1
    leaves = SYMBOLS - first
    weights = np.zeros(2 * leaves, np.int64)
    parents = np.zeros(2 * leaves, np.int64)
    for i in range(leaves):
        weights[i] = counts[order[first + i]]
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
    for i in range(2 * leaves - 3, -1, -1):
        depths[i] = depths[parents[i]] + 1
    used = 0
    for i in range(leaves):
        depths[i] = min(depths[i], LONGEST)
        used += SLOTS >> depths[i]
    i = 0
    while used > SLOTS:  # the rarest pay for the codes that were cut
        if depths[i] < LONGEST:
            depths[i] += 1
            used -= SLOTS >> depths[i]
        else:
            i += 1
    while used < SLOTS:  # and the most frequent that fit take what is left over
        for i in range(leaves - 1, -1, -1):
            if depths[i] > 1 and used + (SLOTS >> depths[i]) <= SLOTS:
                used += SLOTS >> depths[i]
                depths[i] -= 1
    for i in range(leaves):
        lengths[order[first + i]] = depths[i]
    return lengths


@jit
def canonical(lengths: Counts) -> Counts:
    """The code of each symbol, first bit lowest. -1s where the lengths make no complete code."""
    codes = np.zeros(SYMBOLS, np.int64)
    used = 0
    for length in range(1, LONGEST + 1):
        for symbol in range(SYMBOLS):
            if lengths[symbol] == length:
                prefix = used >> (LONGEST - length)
                for bit in range(length):
                    codes[symbol] |= ((prefix >> bit) & 1) << (length - 1 - bit)
                used += SLOTS >> length
        if used > SLOTS:
            break
    if used != SLOTS or lengths.max() > LONGEST:
        codes[:] = -1
    return codes


@jit
def decode_table(lengths: Counts) -> NDArray[np.uint16]:
    """Symbol and length (times 256) for each value of the next bits; empty for a bad code."""
    codes = canonical(lengths)
    if codes[0] < 0:
        return np.empty(0, np.uint16)
    table = np.empty(SLOTS, np.uint16)
    for symbol in range(SYMBOLS):
        if lengths[symbol]:
            for slot in range(codes[symbol], SLOTS, 1 << lengths[symbol]):
                table[slot] = symbol | lengths[symbol] << 8
    return table


@jit
def encode_words(symbols: Bytes, lengths: Counts, words: Words) -> Counts:
    """Writes four streams, each of a quarter of the symbols, into its quarter of `words`.

    Returns:
        The number of words of each stream.
    """
    codes = canonical(lengths)
    table = np.empty(SYMBOLS, np.uint32)
    for symbol in range(SYMBOLS):
        table[symbol] = codes[symbol] | lengths[symbol] << 16
    sizes = np.zeros(4, np.int64)
    quarter, room = (symbols.size + 3) // 4, words.size // 4
    for stream in range(4):
        start = min(stream * quarter, symbols.size)
        stop = min(start + quarter, symbols.size)
        p = stream * room
        held, bits = np.uint64(0), np.uint64(0)
        pairs = start + (stop - start) // 2 * 2
        for i in range(start, pairs, 2):
            one, two = np.uint64(table[symbols[i]]), np.uint64(table[symbols[i + 1]])
            shift = one >> np.uint64(16)
            both = (one & np.uint64(0xFFFF)) | (two & np.uint64(0xFFFF)) << shift
            held |= both << bits
            bits += shift + (two >> np.uint64(16))
            words[p] = np.uint32(held)
            full = bits >> np.uint64(5)
            p += int(full)
            held >>= full << np.uint64(5)
            bits &= np.uint64(31)
        if pairs < stop:
            one = np.uint64(table[symbols[pairs]])
            held |= (one & np.uint64(0xFFFF)) << bits
            bits += one >> np.uint64(16)
        while bits > np.uint64(0):
            words[p] = np.uint32(held)
            p += 1
            held >>= np.uint64(32)
            bits = bits - min(bits, np.uint64(32))
        sizes[stream] = p - stream * room
    return sizes


@jit
def decode_words(words: Words, sizes: Counts, table: NDArray[np.uint16], symbols: Bytes) -> bool:
    """Fills `symbols` from four streams that follow each other in `words`.

    Returns:
        Whether each stream held exactly its symbols. No word outside `words` is ever read.
    """
    quarter = (symbols.size + 3) // 4
    common = min(max(symbols.size - 3 * quarter, 0), quarter) // 2 * 2
    mask, m32 = np.uint64(SLOTS - 1), np.uint64(32)
    eight, byte = np.uint64(8), np.uint64(255)
    last = words.size - 1
    pa = 0
    pb = sizes[0]
    pc = pb + sizes[1]
    pd = pc + sizes[2]
    ea, eb, ec, ed = pb, pc, pd, pd + sizes[3]
    ha = hb = hc = hd = np.uint64(0)
    na = nb = nc = nd = np.uint64(0)
    for i in range(0, common, 2):
        # Refill to at least 32 bits, which hold two codes.
        ta, tb = na < m32, nb < m32
        tc, td = nc < m32, nd < m32
        if ta:
            ha |= np.uint64(words[min(pa, last)]) << na
            pa += 1
            na += m32
        if tb:
            hb |= np.uint64(words[min(pb, last)]) << nb
            pb += 1
            nb += m32
        if tc:
            hc |= np.uint64(words[min(pc, last)]) << nc
            pc += 1
            nc += m32
        if td:
            hd |= np.uint64(words[min(pd, last)]) << nd
            pd += 1
            nd += m32
        for j in range(2):
            ca = np.uint64(table[ha & mask])
            cb = np.uint64(table[hb & mask])
            cc = np.uint64(table[hc & mask])
            cd = np.uint64(table[hd & mask])
            symbols[i + j] = np.uint8(ca & byte)
            symbols[quarter + i + j] = np.uint8(cb & byte)
            symbols[2 * quarter + i + j] = np.uint8(cc & byte)
            symbols[3 * quarter + i + j] = np.uint8(cd & byte)
            ha >>= ca >> eight
            hb >>= cb >> eight
            hc >>= cc >> eight
            hd >>= cd >> eight
            na -= ca >> eight
            nb -= cb >> eight
            nc -= cc >> eight
            nd -= cd >> eight
    good = True
    for stream in range(4):
        start = min(stream * quarter, symbols.size)
        stop = min(start + quarter, symbols.size)
        if stream == 0:
            h, b, p, end = ha, na, pa, ea
        elif stream == 1:
            h, b, p, end = hb, nb, pb, eb
        elif stream == 2:
            h, b, p, end = hc, nc, pc, ec
        else:
            h, b, p, end = hd, nd, pd, ed
        for i in range(min(start + common, stop), stop):
            if b < m32:
                h |= np.uint64(words[min(p, last)]) << b
                p += 1
                b += m32
            c = np.uint64(table[h & mask])
            symbols[i] = np.uint8(c & byte)
            h >>= c >> eight
            b -= c >> eight
        # Refills may be one word ahead of what is needed, and that word whole.
        ahead = np.int64(b >> np.uint64(5))
        good = good and p - ahead == end
    return good


@jit
def trits_to_gaps(symbols: Bytes) -> Bytes:
    """Bytes of five trits, nearly all of them 0, to one byte for each trit that is not.

    Byte 2 g + b is the trit 1 - 2 b behind g zeros, and FAR stands for LONGEST_GAP zeros.

    Returns:
        The gaps; none at all where a byte is no five trits.
    """
    gaps = np.empty(5 * symbols.size, np.uint8)
    made, gap = 0, 0
    for i in range(symbols.size):
        rest = np.int64(symbols[i])
        if rest == ZEROS:
            gap += 5
        elif rest > 2 * ZEROS:
            return gaps[:0]
        else:
            for _ in range(5):
                above = rest * 171 >> 9
                trit = rest - 3 * above
                rest = above
                if trit == 1:
                    gap += 1
                else:
                    while gap >= LONGEST_GAP:
                        gaps[made] = FAR
                        made += 1
                        gap -= LONGEST_GAP
                    gaps[made] = 2 * gap + (trit == 0)
                    made += 1
                    gap = 0
    return gaps[:made]


@jit
def gaps_to_trits(gaps: Bytes, symbols: Bytes) -> bool:
    """The inverse of `trits_to_gaps`. Returns whether all gaps fit."""
    symbols[:] = ZEROS
    place = 0
    powers = np.array([1, 3, 9, 27, 81])
    for i in range(gaps.size):
        if gaps[i] >= FAR:
            place += LONGEST_GAP
        else:
            place += gaps[i] >> 1
            byte = place // 5
            if byte >= symbols.size:
                return False
            change = powers[place - 5 * byte]
            symbols[byte] += np.uint8(-change if gaps[i] & 1 else change)
            place += 1
    return True
