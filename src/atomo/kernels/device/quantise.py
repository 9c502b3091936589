"""Stochastic rounding to a few levels as PyTorch operations. Contracts: `kernels/quantise`."""

import torch
from torch import Generator, Tensor

from atomo.kernels.device.sign import unpack_signs

__all__ = [
    "add_levels",
    "add_powers",
    "largest_and_count",
    "moments",
    "quantise",
    "round_to_powers",
]

COLUMNS = 512
TINY, HUGE = 1e-30, 1e30


def uniform(values: Tensor, seed: int) -> Tensor:
    """A random number in [0, 1) for each value."""
    generator = Generator(values.device).manual_seed(seed)
    return torch.rand(values.shape, generator=generator, device=values.device)


def moments(values: Tensor) -> tuple[float, float]:
    """The largest magnitude and the sum of squares."""
    return float(values.abs().max()), float(values.double().square().sum())


def rows_of(values: Tensor, bucket: int) -> Tensor:
    """The values, a bucket a row, the last one filled up with zeros."""
    return torch.nn.functional.pad(values, (0, -len(values) % bucket)).view(-1, bucket)


def quantise(
    values: Tensor,
    norms: Tensor,
    bucket: int,
    kind: int,
    most: int,
    base: int,
    digits: int,
    seed: int,
    room: int,
) -> tuple[Tensor, Tensor] | None:
    """See the façade; `room` is how many escapes are expected at most."""
    rows = rows_of(values, min(bucket, len(values)))
    if kind:
        found = rows.double().norm(dim=1) if kind == 1 else rows.abs().amax(1)
        norms.copy_(found.float())
    if not norms.isfinite().all():
        raise ValueError("NaN, infinity, or a norm beyond float32")
    # In float64 no quotient leaves the range, however small or large the norm is.
    factors = torch.where(norms > 0, most / norms.double(), 0.0)[:, None]
    sizes = (rows.abs().double() * factors).float().flatten()[: len(values)]
    levels = (sizes + uniform(values, seed)).clamp(max=most).to(torch.int16)
    levels = torch.where(values < 0, -levels, levels)
    symbols, escapes = pack(levels, base, digits)
    if len(escapes) > room:
        return None
    return symbols, escapes


def tiles_of(entries: Tensor, digits: int) -> list[Tensor]:
    """All whole tiles, and what is left as a tile with rows as short as it needs."""
    whole = len(entries) // (digits * COLUMNS) * digits * COLUMNS
    parts = [entries[:whole].view(-1, digits, COLUMNS)]
    rest = rows_of(entries[whole:], digits).numel() // digits
    if rest:
        padding = digits * rest - (len(entries) - whole)
        parts.append(torch.nn.functional.pad(entries[whole:], (0, padding)).view(1, digits, rest))
    return parts


def pack(levels: Tensor, base: int, digits: int) -> tuple[Tensor, Tensor]:
    """Digits to bytes, and the levels of those bytes that cannot hold them."""
    reach = base // 2
    powers = base ** torch.arange(digits, device=levels.device)
    symbols, escapes = [], []
    for tiles in tiles_of(levels, digits):
        far = (tiles.abs() > reach).any(1)
        packed = ((tiles + reach) * powers[None, :, None]).sum(1)
        symbols.append(torch.where(far, base**digits, packed).to(torch.uint8).flatten())
        escapes.append(tiles.transpose(1, 2)[far].flatten())
    return torch.cat(symbols), torch.cat(escapes)


def largest_and_count(symbols: Tensor, code: int) -> tuple[int, int]:
    """The largest symbol, and how many equal `code`."""
    return int(symbols.max()), int((symbols == code).sum())


def add_levels(
    symbols: Tensor,
    escapes: Tensor,
    norms: Tensor,
    bucket: int,
    most: int,
    base: int,
    digits: int,
    out: Tensor,
    scale: float,
) -> None:
    """See the façade."""
    levels = unpack(symbols, escapes, base, digits, len(out))
    units = (norms.double() * scale / most).float()
    rows = rows_of(levels, min(bucket, len(out)))
    out.add_((rows * units[:, None]).flatten()[: len(out)])


def unpack(symbols: Tensor, escapes: Tensor, base: int, digits: int, entries: int) -> Tensor:
    """Bytes to levels."""
    powers = base ** torch.arange(digits, device=symbols.device)
    whole = entries // (digits * COLUMNS) * COLUMNS
    levels, taken = [], 0
    for part, width in ((symbols[:whole], COLUMNS), (symbols[whole:], len(symbols) - whole)):
        if len(part):
            tiles = part.view(-1, 1, width).int() // powers[None, :, None] % base - base // 2
            far = part.view(-1, width) == base**digits
            count = int(far.sum()) * digits
            rows = tiles.transpose(1, 2).contiguous()
            rows[far] = escapes[taken : taken + count].view(-1, digits).to(rows.dtype)
            levels.append(rows.transpose(1, 2).flatten())
            taken += count
    return torch.cat(levels)[:entries]


def round_to_powers(values: Tensor, seed: int) -> Tensor:
    """See the façade."""
    generator = Generator(values.device).manual_seed(seed)
    mantissa = torch.randint(2**23, values.shape, generator=generator, device=values.device)
    magnitude = values.view(torch.int32) & 0x7FFFFFFF
    return ((magnitude + mantissa) >> 23).to(torch.uint8)


def add_powers(symbols: Tensor, words: Tensor, out: Tensor, scale: float) -> None:
    """See the façade."""
    magnitudes = (symbols.to(torch.int32) << 23).view(torch.float32)
    out.add_(torch.where(unpack_signs(words, len(out)), -magnitudes, magnitudes), alpha=scale)
