"""Huffman coding of bytes at memory speed: one static code per message, four parallel streams.

A coder needs each symbol's length before it knows the place of the next symbol. Four independent
streams hide this latency, and each table lookup serves two symbols. Nothing branches on the data.
Reads and writes are whole words of 32 bits.
"""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.entropy.codes import MAX_CODE_BITS, canonical_codes, pair_table
from atomo.kernels.jit import jit

__all__ = ["decode_words", "encode_words"]

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
Words = NDArray[np.uint32]
Word = np.uint64
PAIRS_FROM = 1 << 14  # symbols; for fewer a table of pairs is not worth making
Z, M4, M5, M8 = np.uint64(0), np.uint64(15), np.uint64(31), np.uint64(255)
M12, M24 = np.uint64((1 << MAX_CODE_BITS) - 1), np.uint64((1 << 24) - 1)
S5, S8, S16, S24, S32 = (np.uint64(shift) for shift in (5, 8, 16, 24, 32))
# The fields of a slot of the decoder's table: the bits of its codes, the bits of the first code,
# and the number of symbols.
COST, FIRST, MEANT = np.uint64(16), np.uint64(21), np.uint64(25)


@jit
def put(
    code: Word, bits: Word, buffer: Word, count: Word, words: Words, p: Word
) -> tuple[Word, ...]:
    """Appends a code of at most 24 bits to a buffer of `count` < 32 bits."""
    buffer |= code << count  # fewer than 32 and at most 24 bits: a word of 64 holds them
    count += bits
    # Always written, and passed only once it is whole: no branch.
    words[p] = np.uint32(buffer)
    full = count >> S5
    return buffer >> (full << S5), count & M5, p + full


@jit
def put_pair(
    symbols: Bytes, i: int, table: Words, buffer: Word, count: Word, words: Words, p: Word
) -> tuple[Word, ...]:
    at = np.uint64(i)
    pair = np.uint64(symbols[at]) | np.uint64(symbols[at + np.uint64(1)]) << S8
    code = np.uint64(table[pair])
    buffer, count, p = put(code & M24, code >> S24, buffer, count, words, p)
    return buffer, count, p


@jit
def put_rest(
    symbols: Bytes, codes: Counts, lengths: Counts, buffer: Word, count: Word, words: Words, p: Word
) -> int:
    """Appends the last symbols of a stream one by one, and the buffer. Returns the stream's end."""
    for i in range(symbols.size):
        code = codes[symbols[i]]
        buffer, count, p = put(
            np.uint64(code), np.uint64(lengths[symbols[i]]), buffer, count, words, p
        )
    if count:
        words[p] = np.uint32(buffer)
        p += np.uint64(1)
    return int(p)


@jit
def encode_words(symbols: Bytes, lengths: Counts, words: Words) -> Counts:
    """Writes four streams, each of a quarter of the symbols, into its quarter of `words`.

    Returns:
        The number of words of each stream.
    """
    codes = canonical_codes(lengths)
    n = symbols.size
    quarter, room = (n + 3) // 4, words.size // 4
    # The pairs that all quarters have, of which the last is up to 3 symbols shorter.
    common = 0 if n < PAIRS_FROM else (n - 3 * quarter) // 2 * 2
    # Held bits, their count and the next word of each stream, as names of their own: an array of
    # them would live in memory, and these in registers.
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
def refill(words: Words, p: int, buffer: Word, count: Word) -> tuple[int, Word, Word]:
    """Fills the buffer of `count` bits to 32 or more. No word outside `words` is ever read."""
    need = np.uint64(count < S32)
    # After the end the last word is read again: a stream that needs these bits is reported as
    # damaged afterwards; until then its symbols are only wrong.
    word = np.uint64(words[np.uint64(min(p, words.size - 1))])
    return p + int(need), buffer | (word * need) << (count & M5), count + (need << S5)


@jit
def take(
    words: Words, p: int, buffer: Word, count: Word, table: Words, out: Bytes, place: int
) -> tuple[int, Word, Word, int]:
    """Decodes two to four symbols to `place`, where there must be room for four."""
    p, buffer, count = refill(words, p, buffer, count)
    for _ in range(2):  # each costs at most LONGEST bits, and 32 are there
        slot = np.uint64(table[buffer & M12])
        out[np.uint64(place)] = np.uint8(slot & M8)
        # If the slot has one symbol, the next symbol overwrites this.
        out[np.uint64(place + 1)] = np.uint8(slot >> S8 & M8)
        cost = slot >> COST & M5
        buffer >>= cost
        count -= cost
        place += int(slot >> MEANT)
    return p, buffer, count, place


@jit
def take_rest(
    words: Words, p: int, buffer: Word, count: Word, table: Words, out: Bytes, place: int
) -> int:
    """Decodes the rest of a stream. Returns the index after the last word that it needed."""
    while place + 4 <= out.size:
        p, buffer, count, place = take(words, p, buffer, count, table, out, place)
    while place < out.size:  # no room for a second symbol of a slot: one at a time
        p, buffer, count = refill(words, p, buffer, count)
        slot = np.uint64(table[buffer & M12])
        out[place] = np.uint8(slot & M8)
        cost = slot >> FIRST & M4
        buffer >>= cost
        count -= cost
        place += 1
    # A refill may have read one word too many, and that word is whole.
    return p - int(count >> S5)


@jit
def decode_words(words: Words, sizes: Counts, table: Words, symbols: Bytes) -> bool:
    """Fills `symbols` from four streams that follow each other in `words`.

    Returns:
        True if each stream had exactly its symbols.
    """
    quarter = (symbols.size + 3) // 4
    end_a = sizes[0]
    end_b = end_a + sizes[1]
    end_c = end_b + sizes[2]
    end_d = end_c + sizes[3]
    first, second = symbols[:quarter], symbols[quarter : 2 * quarter]
    third, fourth = symbols[2 * quarter : 3 * quarter], symbols[3 * quarter :]
    ha, hb, hc, hd = Z, Z, Z, Z
    na, nb, nc, nd = Z, Z, Z, Z
    pa, pb, pc, pd = 0, end_a, end_b, end_c
    a = b = c = d = 0
    while max(a, b, c, d) + 4 <= fourth.size:  # the shortest
        pa, ha, na, a = take(words, pa, ha, na, table, first, a)
        pb, hb, nb, b = take(words, pb, hb, nb, table, second, b)
        pc, hc, nc, c = take(words, pc, hc, nc, table, third, c)
        pd, hd, nd, d = take(words, pd, hd, nd, table, fourth, d)
    return bool(
        take_rest(words, pa, ha, na, table, first, a) == end_a
        and take_rest(words, pb, hb, nb, table, second, b) == end_b
        and take_rest(words, pc, hc, nc, table, third, c) == end_c
        and take_rest(words, pd, hd, nd, table, fourth, d) == end_d
    )
