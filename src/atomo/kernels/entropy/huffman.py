"""Huffman coding of bytes at memory speed: one static code per message, four streams at once.

A coder waits for each symbol's length before it knows where the next one goes or begins. Four
independent streams fill that wait, and each look into a table serves two symbols. Nothing branches
on the data. Words of 32 bits, never fewer, go in and out.
"""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["LONGEST", "code_lengths", "decode_table", "decode_words", "encode_words"]

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
Words = NDArray[np.uint32]
Word = np.uint64
LONGEST = 12  # bits of a code; two of them fit in what a refill guarantees
SLOTS = 1 << LONGEST
SYMBOLS = 256
FEW = 1 << 14  # symbols, which are coded before a table of pairs is made
Z, M5, M8, M12 = np.uint64(0), np.uint64(31), np.uint64(255), np.uint64(SLOTS - 1)
S5, S8, S16, S32 = np.uint64(5), np.uint64(8), np.uint64(16), np.uint64(32)
# A slot of the decoder's table: two symbols, and from these bits on what the two cost, what the
# first one costs, and how many symbols are meant.
COST, FIRST, MEANT = np.uint64(16), np.uint64(21), np.uint64(25)
M4 = np.uint64(15)


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
def decode_table(lengths: Counts) -> Words:
    """What the next LONGEST bits stand for, for each value of them; empty for a bad code."""
    codes = canonical(lengths)
    if codes[0] < 0:
        return np.empty(0, np.uint32)
    single = np.empty(SLOTS, np.uint32)
    for symbol in range(SYMBOLS):
        if lengths[symbol]:
            for slot in range(codes[symbol], SLOTS, 1 << lengths[symbol]):
                single[slot] = symbol | lengths[symbol] << 8
    table = np.empty(SLOTS, np.uint32)
    for slot in range(SLOTS):
        one = np.int64(single[slot])
        cost = one >> 8
        two = np.int64(single[slot >> cost])
        both = cost + (two >> 8)
        if both <= LONGEST:
            table[slot] = one & 255 | (two & 255) << 8 | both << 16 | cost << 21 | 2 << 25
        else:
            table[slot] = one & 255 | cost << 16 | cost << 21 | 1 << 25
    return table


@jit
def pair_table(codes: Counts, lengths: Counts) -> Words:
    """The joined codes of any two symbols that occur, and from bit 24 on their length."""
    table = np.zeros(SYMBOLS * SYMBOLS, np.uint32)
    used = np.nonzero(lengths)[0]
    for second in used:
        for first in used:
            code = codes[first] | codes[second] << lengths[first]
            table[first | second << 8] = code | (lengths[first] + lengths[second]) << 24
    return table


@jit
def put(code: Word, bits: Word, held: Word, count: Word, words: Words, p: Word) -> tuple[Word, ...]:
    """Appends a code of at most 24 bits to the `count` < 32 bits that are held."""
    held |= code << count
    count += bits
    words[p] = np.uint32(held)
    full = count >> S5
    return held >> (full << S5), count & M5, p + full


@jit
def put_pair(
    symbols: Bytes, i: int, table: Words, held: Word, count: Word, words: Words, p: Word
) -> tuple[Word, ...]:
    """Appends the codes of two symbols."""
    at = np.uint64(i)
    pair = np.uint64(symbols[at]) | np.uint64(symbols[at + np.uint64(1)]) << S8
    code = np.uint64(table[pair])
    held, count, p = put(code & np.uint64(0xFFFFFF), code >> np.uint64(24), held, count, words, p)
    return held, count, p


@jit
def put_rest(
    symbols: Bytes, codes: Counts, lengths: Counts, held: Word, count: Word, words: Words, p: Word
) -> int:
    """Appends the last symbols of a stream one by one, and what is held. Returns its end."""
    for i in range(symbols.size):
        code = codes[symbols[i]]
        held, count, p = put(np.uint64(code), np.uint64(lengths[symbols[i]]), held, count, words, p)
    if count:
        words[p] = np.uint32(held)
        p += np.uint64(1)
    return int(p)


@jit
def encode_words(symbols: Bytes, lengths: Counts, words: Words) -> Counts:
    """Writes four streams, each of a quarter of the symbols, into its quarter of `words`.

    Returns:
        The number of words of each stream.
    """
    codes = canonical(lengths)
    n = symbols.size
    quarter, room = (n + 3) // 4, words.size // 4
    common = 0 if n < FEW else (n - 3 * quarter) // 2 * 2
    ha, hb, hc, hd = Z, Z, Z, Z
    na, nb, nc, nd = Z, Z, Z, Z
    pa, pb, pc, pd = Z, np.uint64(room), np.uint64(2 * room), np.uint64(3 * room)
    if common:
        table = pair_table(codes, lengths)
        for i in range(0, common, 2):
            ha, na, pa = put_pair(symbols, i, table, ha, na, words, pa)
            hb, nb, pb = put_pair(symbols, quarter + i, table, hb, nb, words, pb)
            hc, nc, pc = put_pair(symbols, 2 * quarter + i, table, hc, nc, words, pc)
            hd, nd, pd = put_pair(symbols, 3 * quarter + i, table, hd, nd, words, pd)
    sizes = np.empty(4, np.int64)
    a, b, c, d = (common, quarter + common, 2 * quarter + common, 3 * quarter + common)
    sizes[0] = put_rest(symbols[a:quarter], codes, lengths, ha, na, words, pa)
    sizes[1] = put_rest(symbols[b : 2 * quarter], codes, lengths, hb, nb, words, pb) - room
    sizes[2] = put_rest(symbols[c : 3 * quarter], codes, lengths, hc, nc, words, pc) - 2 * room
    sizes[3] = put_rest(symbols[d:], codes, lengths, hd, nd, words, pd) - 3 * room
    return sizes


@jit
def refill(words: Words, p: int, held: Word, count: Word) -> tuple[int, Word, Word]:
    """Makes the `count` bits that are held 32 or more. No word outside `words` is ever read."""
    need = np.uint64(count < S32)
    word = np.uint64(words[np.uint64(min(p, words.size - 1))])
    return p + int(need), held | (word * need) << (count & M5), count + (need << S5)


@jit
def take(
    words: Words, p: int, held: Word, count: Word, table: Words, out: Bytes, place: int
) -> tuple[int, Word, Word, int]:
    """Decodes two to four symbols to `place`, where there must be room for four."""
    p, held, count = refill(words, p, held, count)
    for _ in range(2):
        slot = np.uint64(table[held & M12])
        out[np.uint64(place)] = np.uint8(slot & M8)
        out[np.uint64(place + 1)] = np.uint8(slot >> S8 & M8)
        cost = slot >> COST & M5
        held >>= cost
        count -= cost
        place += int(slot >> MEANT)
    return p, held, count, place


@jit
def take_rest(
    words: Words, p: int, held: Word, count: Word, table: Words, out: Bytes, place: int
) -> int:
    """Decodes the rest of a stream. Returns the index behind the last word that it needed."""
    while place + 4 <= out.size:
        p, held, count, place = take(words, p, held, count, table, out, place)
    while place < out.size:
        p, held, count = refill(words, p, held, count)
        slot = np.uint64(table[held & M12])
        out[place] = np.uint8(slot & M8)
        cost = slot >> FIRST & M4
        held >>= cost
        count -= cost
        place += 1
    # A refill may be one word ahead of what was needed, and that word is whole.
    return p - int(count >> S5)


@jit
def decode_words(words: Words, sizes: Counts, table: Words, symbols: Bytes) -> bool:
    """Fills `symbols` from four streams that follow each other in `words`.

    Returns:
        Whether each stream held exactly its symbols.
    """
    quarter = (symbols.size + 3) // 4
    ends = np.cumsum(sizes)
    one, two = symbols[:quarter], symbols[quarter : 2 * quarter]
    three, four = symbols[2 * quarter : 3 * quarter], symbols[3 * quarter :]
    ha, hb, hc, hd = Z, Z, Z, Z
    na, nb, nc, nd = Z, Z, Z, Z
    pa, pb, pc, pd = 0, ends[0], ends[1], ends[2]
    a = b = c = d = 0
    while max(a, b, c, d) + 4 <= four.size:  # the shortest
        pa, ha, na, a = take(words, pa, ha, na, table, one, a)
        pb, hb, nb, b = take(words, pb, hb, nb, table, two, b)
        pc, hc, nc, c = take(words, pc, hc, nc, table, three, c)
        pd, hd, nd, d = take(words, pd, hd, nd, table, four, d)
    return bool(
        take_rest(words, pa, ha, na, table, one, a) == ends[0]
        and take_rest(words, pb, hb, nb, table, two, b) == ends[1]
        and take_rest(words, pc, hc, nc, table, three, c) == ends[2]
        and take_rest(words, pd, hd, nd, table, four, d) == ends[3]
    )
