"""Stochastic rounding to a few levels as PyTorch operations. Contracts: `kernels/quantise`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atomo.kernels.quantise import (
    COLUMNS,
    EUCLIDEAN,
    HUGE,
    LIFT_HUGE,
    LIFT_TINY,
    TINY,
    LevelForm,
    room_for_escapes,
)
from atomo.kernels.random_words.reference import tile_words

__all__ = ["add_all_levels", "add_levels", "largest_and_counts", "moments", "quantise"]


def moments(values: Tensor) -> tuple[float, float]:
    return float(values.abs().max()), float(values.double().square().sum())


def rows_of(values: Tensor, bucket: int) -> Tensor:
    """Reshapes the values to one bucket a row, with zeros at the end of the last."""
    return torch.nn.functional.pad(values, (0, -len(values) % bucket)).view(-1, bucket)


def quantise(
    values: Tensor, norms: Tensor, bucket: int, kind: int, highest: int, form: LevelForm, seed: int
) -> tuple[Tensor, Tensor] | None:
    values = values.float()
    rows = rows_of(values, min(bucket, len(values)))
    if kind:
        norms.copy_(rows.double().norm(dim=1) if kind == EUCLIDEAN else rows.abs().amax(1))
    if not norms.isfinite().all():
        raise ValueError("NaN, infinity, or a norm beyond float32")
    sizes = quotients(rows, norms, highest).flatten()[: len(values)]
    uniform = (tile_words(values, form.tile, seed) >> 8).float() * 2.0**-24
    # floor(a + u) of a uniform u is one of a's two neighbours, with a as its mean.
    levels = (sizes + uniform).clamp(max=highest).to(torch.int16)
    symbols, escapes = pack(torch.where(values < 0, -levels, levels), form)
    if len(escapes) > room_for_escapes(len(values), highest, form):
        return None
    return symbols, escapes


def quotients(rows: Tensor, norms: Tensor, highest: int) -> Tensor:
    """Computes |value| * most / norm, with the float32 roundings that all backends share."""
    exact = norms.double()
    lift = torch.where(exact < TINY, LIFT_TINY, torch.where(exact > HUGE, LIFT_HUGE, 1.0))
    factors = torch.where(exact > 0, highest / (exact * lift), 0.0).float()
    return rows.abs() * lift[:, None] * factors[:, None]


def tiles_of(entries: Tensor, digits: int) -> list[Tensor]:
    """Yields all whole tiles, and the rest as a tile with shorter rows."""
    whole = len(entries) // (digits * COLUMNS) * digits * COLUMNS
    parts = [entries[:whole].view(-1, digits, COLUMNS)]
    width = rows_of(entries[whole:], digits).numel() // digits
    if width:
        padding = digits * width - (len(entries) - whole)
        parts.append(torch.nn.functional.pad(entries[whole:], (0, padding)).view(1, digits, width))
    return parts


def pack(levels: Tensor, form: LevelForm) -> tuple[Tensor, Tensor]:
    """Packs levels as digits of bytes; returns the bytes and the levels of escaped bytes."""
    base, digits = form.base, form.digits
    reach = base // 2
    powers = base ** torch.arange(digits, device=levels.device)
    symbols, escapes = [], []
    for tiles in tiles_of(levels, digits):
        far = (tiles.abs() > reach).any(1)
        packed = ((tiles + reach) * powers[None, :, None]).sum(1)
        symbols.append(torch.where(far, form.escape, packed).to(torch.uint8).flatten())
        escapes.append(tiles.transpose(1, 2)[far].flatten())
    return torch.cat(symbols), torch.cat(escapes)


def largest_and_counts(symbols: Tensor, code: int) -> tuple[int, list[int]]:
    largest = int(symbols.max()) if symbols.numel() else 0
    return largest, (symbols == code).sum(1).tolist()


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
    levels = unpack(symbols, escapes, form, len(out))
    units = (norms.double() * scale / highest).float()
    rows = rows_of(levels, min(bucket, len(out)))
    out.add_((rows * units[:, None]).flatten()[: len(out)])


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
    for parts in zip(symbols, escapes, norms, strict=True):
        add_levels(*parts, bucket, highest, form, out, scale)


def unpack(symbols: Tensor, escapes: Tensor, form: LevelForm, entries: int) -> Tensor:
    base, digits = form.base, form.digits
    powers = base ** torch.arange(digits, device=symbols.device)
    whole = entries // (digits * COLUMNS) * COLUMNS
    levels, restored = [], 0
    for part, width in ((symbols[:whole], COLUMNS), (symbols[whole:], len(symbols) - whole)):
        if len(part):
            tiles = part.view(-1, 1, width).int() // powers[None, :, None] % base - base // 2
            far = part.view(-1, width) == base**digits
            count = int(far.sum()) * digits
            rows = tiles.transpose(1, 2).contiguous()
            rows[far] = escapes[restored : restored + count].view(-1, digits).to(rows.dtype)
            levels.append(rows.transpose(1, 2).flatten())
            restored += count
    return torch.cat(levels)[:entries]
