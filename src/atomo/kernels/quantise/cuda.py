"""Stochastic rounding to a few levels, packed in the same pass, in Triton.

Contracts: `kernels/quantise`. A program has TILES tiles and takes them row by row: each row adds a
digit to the bytes of its tile, so that levels never leave their registers. Where a row is a bucket,
as with the buckets of 512 that `qsgd` has by default, its norm is taken there too, and the gradient
is read once.
"""

from collections.abc import Sequence
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.cuda import starts_of
from atomo.kernels.counts.cuda import counted
from atomo.kernels.moments.cuda import run_moments
from atomo.kernels.quantise import (
    COLUMNS,
    EUCLIDEAN,
    GIVEN,
    HUGE,
    LIFT_HUGE,
    LIFT_TINY,
    TINY,
    LevelForm,
    room_for_escapes,
    symbol_count,
)
from atomo.kernels.random_words.cuda import first_words, mix, next_words
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["add_all_levels", "add_levels", "largest_and_counts", "moments", "quantise"]

TILES: Final = 4
RANGES: Final = {"TINY": TINY, "HUGE": HUGE, "LIFT_TINY": LIFT_TINY, "LIFT_HUGE": LIFT_HUGE}


def moments(values: Tensor) -> tuple[float, float]:
    largest, squares = torch.stack(run_moments(values, len(values))).flatten().tolist()
    return largest, squares


def quantise(
    values: Tensor, norms: Tensor, bucket: int, kind: int, highest: int, form: LevelForm, seed: int
) -> tuple[Tensor, Tensor] | None:
    fused = len(values) // form.tile * form.digits if kind and bucket == COLUMNS else 0
    if kind and fused < len(norms):  # of all buckets that are no rows of whole tiles
        largest, squares = run_moments(values[fused * COLUMNS :], bucket)
        norms[fused:] = squares.sqrt() if kind == EUCLIDEAN else largest
    symbols = values.new_empty(symbol_count(len(values), form), dtype=torch.uint8)
    counts = torch.zeros(-(-len(values) // form.tile), dtype=torch.int64, device=values.device)
    first_kind = kind if fused else GIVEN
    round_all(values, norms, bucket, first_kind, highest, form, seed, symbols, counts, False)
    starts = starts_of(counts)
    escaped, odd = torch.stack([starts[-1], (~norms.isfinite()).sum()]).tolist()  # the only wait
    if odd:
        raise ValueError("NaN, infinity, or a norm beyond float32")
    if escaped * form.digits > room_for_escapes(len(values), highest, form):
        return None
    escapes = values.new_empty(escaped * form.digits, dtype=torch.int16)
    if escaped:  # rare: tiles with escapes are rounded again, to the same levels
        round_all(values, norms, bucket, GIVEN, highest, form, seed, escapes, starts, True)
    return symbols, escapes


def scales(norms: Tensor, highest: int) -> Tensor:
    """Computes a power of two and a factor for each norm; their product with a value is the
    quotient.
    """
    exact = norms.double()
    lift = torch.where(exact < TINY, LIFT_TINY, torch.where(exact > HUGE, LIFT_HUGE, 1.0))
    return torch.stack([lift, torch.where(exact > 0, highest / (exact * lift), 0.0)], 1).float()


def launches(entries: int, form: LevelForm) -> list[tuple[int, int, int]]:
    """Yields the first tile, the number of tiles and their columns: whole tiles, and a last one."""
    whole, remainder = divmod(entries, form.tile)
    candidates = [(0, whole, COLUMNS), (whole, min(remainder, 1), -(-remainder // form.digits))]
    return [launch for launch in candidates if launch[1]]


def round_all(
    values: Tensor,
    norms: Tensor,
    bucket: int,
    kind: int,
    highest: int,
    form: LevelForm,
    seed: int,
    out: Tensor,
    counts: Tensor,
    escapes: bool,
) -> None:
    """Fills `out` with symbols, and counts those that escape, or fills it with these."""
    for first, tiles, columns in launches(len(values), form):
        whole = first == 0 and columns == COLUMNS
        own = kind if whole else GIVEN
        units = norms if own else scales(norms, highest)
        sizes = first, first + tiles, columns, len(values), bucket, highest, seed
        constants = {"KIND": own, "WHOLE": whole, "ONE": bucket >= len(values), "ESCAPES": escapes}
        form_of = {"BASE": form.base, "DIGITS": form.digits, "CODE": form.escape}
        round_tiles[(-(-tiles // TILES),)](
            values, units, out, counts, *sizes, **constants, **form_of,
            TILES=TILES, COLUMNS=COLUMNS, **RANGES, **EXACT,
        )  # fmt: skip


@device_code
def words_of(keys, place, STEPS: tl.constexpr):
    """Returns the random words of each key at these places, below 128 * (STEPS + 1)."""
    word = first_words(keys[:, None], (place % 128)[None, :])
    step = (place // 128)[None, :]
    for number in tl.static_range(STEPS):
        word = tl.where(step > number, next_words(word), word)
    return word


@device_code
def bucket_of(first, column, bucket, ONE: tl.constexpr):
    """Returns the buckets of the entries of rows that begin at `first`."""
    whole = first // bucket
    number = whole[:, None] + column[None, :] * 0
    if not ONE:  # a division of 32 bits for each entry, and of 64 for each row
        inner = (first - whole * bucket)[:, None] + column[None, :]
        number += (inner.to(tl.uint32) // bucket.to(tl.uint32)).to(tl.int64)
    return number


@device_code
def round_row(
    values, units, tile, end, row, word, columns, entries, bucket, highest,
    KIND: tl.constexpr, ONE: tl.constexpr, DIGITS: tl.constexpr, COLUMNS: tl.constexpr,
    TINY: tl.constexpr, HUGE: tl.constexpr, LIFT_TINY: tl.constexpr, LIFT_HUGE: tl.constexpr,
):  # fmt: skip
    """Rounds the levels of a row of each tile."""
    column = tl.arange(0, COLUMNS)
    first = tile * (DIGITS * COLUMNS) + row * columns
    place = first[:, None] + column[None, :]
    inside = (tile < end)[:, None] & (column < columns)[None, :] & (place < entries)
    entry = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    if KIND == 0:
        number = bucket_of(first, column, bucket, ONE)
        lift = tl.load(units + 2 * number, mask=inside, other=0.0)
        factor = tl.load(units + 2 * number + 1, mask=inside, other=0.0)
    else:
        if KIND == 1:
            wide = entry.to(tl.float64)
            norm = tl.sqrt(tl.sum(wide * wide, 1)).to(tl.float32)
        else:
            norm = tl.max(entry.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
            norm = norm.to(tl.float32, bitcast=True)
        tl.store(units + tile * DIGITS + row, norm, mask=tile < end)
        exact = norm.to(tl.float64)
        tiny, huge = tl.full([], TINY, tl.float64), tl.full([], HUGE, tl.float64)
        up = tl.where(exact > huge, LIFT_HUGE, 1.0).to(tl.float64)
        up = tl.where(exact < tiny, LIFT_TINY, up)
        quotient = highest / tl.where(exact > 0, exact * up, 1.0)
        factor = tl.where(exact > 0, quotient, 0.0).to(tl.float32)[:, None]
        lift = up.to(tl.float32)[:, None]
    uniform = (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
    size = tl.abs(entry) * lift * factor + uniform
    level = tl.where(size < highest + 1, size, highest).to(
        tl.int32
    )  # NaN, which is refused later, too
    return tl.where(entry < 0, -level, level)


@device_code
def round_tiles(
    values, units, out, counts, first, end, columns, entries, bucket, highest, seed,
    KIND: tl.constexpr, WHOLE: tl.constexpr, ONE: tl.constexpr, ESCAPES: tl.constexpr,
    BASE: tl.constexpr, DIGITS: tl.constexpr, CODE: tl.constexpr, TILES: tl.constexpr,
    COLUMNS: tl.constexpr, TINY: tl.constexpr, HUGE: tl.constexpr, LIFT_TINY: tl.constexpr,
    LIFT_HUGE: tl.constexpr,
):  # fmt: skip
    start = first + tl.program_id(0).to(tl.int64) * TILES
    if ESCAPES:
        before = tl.load(counts + start)
        if tl.load(counts + tl.minimum(start + TILES, end)) == before:
            return
    tile, column = start + tl.arange(0, TILES), tl.arange(0, COLUMNS)
    keys = mix((tl.zeros([TILES], tl.uint64) + seed) ^ mix(tile))
    packed = tl.zeros([TILES, COLUMNS], tl.int32)
    far = tl.zeros([TILES, COLUMNS], tl.int32)
    inside = (tile < end)[:, None] & (column < columns)[None, :]
    for turn in tl.static_range(2 if ESCAPES else 1):
        rank = tl.cumsum(far, 1) - far + tl.load(counts + tile, mask=tile < end, other=0)[:, None]
        word = words_of(keys, column, 3)
        unit = 1
        for row in tl.static_range(DIGITS):
            if not WHOLE:
                word = words_of(keys, row * columns + column, 4 * DIGITS - 1)
            elif row > 0:  # 512 places further
                word = next_words(next_words(next_words(next_words(word))))
            level = round_row(
                values, units, tile, end, row, word, columns, entries, bucket, highest,
                KIND, ONE, DIGITS, COLUMNS, TINY, HUGE, LIFT_TINY, LIFT_HUGE,
            )  # fmt: skip
            if turn == 0:
                packed += (level + BASE // 2) * unit
                far |= (tl.abs(level) > BASE // 2).to(tl.int32)
                unit *= BASE
            else:
                tl.store(out + rank * DIGITS + row, level.to(tl.int16), mask=inside & (far == 1))
    if not ESCAPES:
        symbol = tl.where(far == 1, CODE, packed).to(tl.uint8)
        tl.store(out + tile[:, None] * COLUMNS + column[None, :], symbol, mask=inside)
        tl.store(counts + tile, tl.sum(far, 1).to(tl.int64), mask=tile < end)


def largest_and_counts(symbols: Tensor, code: int) -> tuple[int, list[int]]:
    largest, counts = counted(symbols, code, COLUMNS)
    numbers = torch.cat([largest.amax().view(1), counts.sum(1)]).tolist()  # the only wait
    return numbers[0], numbers[1:]


def add_levels(
    symbols: Tensor,
    escapes: Tensor,
    norms: Tensor,
    bucket: int,
    highest: int,
    form: LevelForm,
    out: Tensor,
    scale: float,
) -> None:
    add_all_levels(symbols[None], [escapes], norms[None], bucket, highest, form, out, scale)


def add_all_levels(
    symbols: Tensor,
    escapes: Sequence[Tensor],
    norms: Tensor,
    bucket: int,
    highest: int,
    form: LevelForm,
    out: Tensor,
    scale: float,
) -> None:
    units = (norms.double() * scale / highest).float()
    far = torch.cat([*escapes])
    # The number of escapes before each tile, over all frames one after the other.
    starts = starts_of(counted(symbols, form.escape, COLUMNS)[1].flatten()) if len(far) else units
    tiled = -(-symbols.shape[1] // COLUMNS)
    several = len(symbols), symbols.stride(0), units.shape[1], tiled
    constants = {"ONE": bucket >= len(out), "SOME": len(far) > 0, "TILES": TILES}
    form_of = {"BASE": form.base, "DIGITS": form.digits, "CODE": form.escape}
    for first, tiles, columns in launches(len(out), form):
        sizes = first, first + tiles, columns, len(out), bucket
        add_tiles[(-(-tiles // TILES),)](
            symbols, starts, far, units, out, *sizes, *several, **constants, **form_of,
            COLUMNS=COLUMNS, **EXACT,
        )  # fmt: skip


@device_code
def add_tiles(
    symbols, starts, escapes, units, out, first, end, columns, entries, bucket,
    frames, stride, buckets, tiled,
    ONE: tl.constexpr, SOME: tl.constexpr, BASE: tl.constexpr, DIGITS: tl.constexpr,
    CODE: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    start = first + tl.program_id(0).to(tl.int64) * TILES
    tile, column = start + tl.arange(0, TILES), tl.arange(0, COLUMNS)
    columns_inside = (tile < end)[:, None] & (column < columns)[None, :]
    at = tile[:, None] * COLUMNS + column[None, :]
    # A row of the sum stays in registers while all frames are added; their bytes, a few for each
    # entry, are read again for the next row while they are in the cache.
    for row in tl.static_range(DIGITS):
        begin = tile * (DIGITS * COLUMNS) + row * columns
        place = begin[:, None] + column[None, :]
        inside = columns_inside & (place < entries)
        unit_at = units + bucket_of(begin, column, bucket, ONE)
        code_at, before_at = symbols + at, starts + tile
        entry = tl.load(out + place, mask=inside, other=0.0)
        for _ in range(frames):
            code = tl.load(code_at, mask=columns_inside, other=0).to(tl.int32)
            level = code // BASE**row % BASE - BASE // 2
            if SOME:
                far = (columns_inside & (code == CODE)).to(tl.int32)
                before = tl.load(before_at, mask=tile < end, other=0)
                rank = before.to(tl.int64)[:, None] + tl.cumsum(far, 1) - far
                escaped = tl.load(escapes + rank * DIGITS + row, mask=far == 1, other=0)
                level = tl.where(far == 1, escaped.to(tl.int32), level)
            unit = tl.load(unit_at, mask=inside, other=0.0)
            entry += level.to(tl.float32) * unit
            code_at += stride
            unit_at += buckets
            before_at += tiled
        tl.store(out + place, entry, mask=inside)
