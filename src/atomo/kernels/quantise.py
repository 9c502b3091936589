"""Stochastic rounding, for the device of the tensor. What both backends promise.

Entries are split into tiles of `digits` rows of 512 (a last tile has shorter rows), and byte j of a
tile is sum_d (level of entry j of row d + base // 2) * base^d. A byte that cannot hold its levels
is base^digits, and its levels are the next ones of `escapes`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int16, Int32, UInt8
from torch import Tensor

from atomo.kernels.cpu import powers
from atomo.kernels.cpu import quantise as cpu
from atomo.kernels.device import quantise as device
from atomo.kernels.sign import word_count

__all__ = [
    "EUCLIDEAN",
    "FORMS",
    "GIVEN",
    "LARGEST",
    "Form",
    "add_levels",
    "add_powers",
    "moments",
    "quantise",
    "round_to_powers",
    "symbol_count",
]

COLUMNS: Final = 512
GIVEN, EUCLIDEAN, LARGEST = 0, 1, 2


@dataclass(frozen=True)
class Form:
    """How many levels go into a byte."""

    base: int  # odd; levels from -(base // 2) to base // 2 fit
    digits: int

    @property
    def escape(self) -> int:
        """The byte that stands for levels out of reach."""
        return int(self.base**self.digits)


FORMS: Final = (Form(3, 5), Form(15, 2), Form(255, 1))


def symbol_count(entries: int, form: Form) -> int:
    """How many bytes `entries` levels take."""
    tiles, rest = divmod(entries, form.digits * COLUMNS)
    return tiles * COLUMNS + -(-rest // form.digits)


def quantise(
    values: Float[Tensor, " n"],
    norms: Float[Tensor, " buckets"],
    bucket: int,
    kind: int,
    most: int,
    form: Form,
    seed: int,
) -> tuple[UInt8[Tensor, " bytes"], Int16[Tensor, " escaped"]] | None:
    """Rounds sign * |value| * most / norm at random to one of its two neighbouring integers.

    Its expectation is the number itself wherever |value| is no more than the norm; above, it is
    `most`. A bucket of norm 0 is all zero.

    Args:
        values: contiguous, at least one.
        norms: one for every `bucket` values. Filled here unless `kind` is GIVEN.
        bucket: at least 1.
        kind: GIVEN, EUCLIDEAN or LARGEST.
        most: the highest level, 1 to 255.
        form: too narrow a form costs two bytes for every level that it cannot hold.
        seed: of the counter-based random numbers.

    Returns:
        The packed levels, and those that a byte could not hold; None if more of these than
        expected came up in a form that is not the last.

    Raises:
        ValueError: a norm is not finite.
    """
    room = len(values) // 64 + 64 if form != FORMS[-1] else len(values) if most > 127 else 0
    if values.device.type != "cpu":
        return device.quantise(
            values, norms, bucket, kind, most, form.base, form.digits, seed, room
        )
    symbols = torch.empty(symbol_count(len(values), form), dtype=torch.uint8)
    escapes = np.empty(room, np.int16)
    arrays = values.numpy(), norms.numpy()
    escaped = cpu.quantise(
        *arrays,
        bucket,
        kind,
        most,
        form.base,
        form.digits,
        np.uint64(seed),
        symbols.numpy(),
        escapes,
    )
    if escaped == -2:
        raise ValueError("NaN, infinity, or a norm beyond float32")
    return None if escaped < 0 else (symbols, torch.from_numpy(escapes[:escaped].copy()))


def add_levels(
    symbols: UInt8[Tensor, " bytes"],
    escapes: Int16[Tensor, " escaped"],
    norms: Float[Tensor, " buckets"],
    bucket: int,
    most: int,
    form: Form,
    out: Float[Tensor, " n"],
    scale: float,
) -> None:
    """Adds scale * norm * level / most for each level, in place.

    Raises:
        ValueError: symbols or escapes are not what `quantise` makes; `out` is unchanged.
    """
    backend = cpu if out.device.type == "cpu" else device
    held = symbols.numpy() if backend is cpu else symbols
    largest, escaped = backend.largest_and_count(held, form.escape)
    if len(symbols) != symbol_count(len(out), form) or largest > form.escape:
        raise ValueError(f"{len(symbols)} symbols up to {largest} for {len(out)} entries")
    if escaped * form.digits != len(escapes) or bool((escapes.to(torch.int32).abs() > most).any()):
        raise ValueError(f"{len(escapes)} levels, or ones above {most}, for {escaped} symbols")
    setting = bucket, most, form.base, form.digits
    if backend is cpu:
        parts = symbols.numpy(), aligned(escapes).numpy(), aligned(norms).numpy()
        cpu.add_levels(*parts, *setting, out.numpy(), scale)
    else:
        device.add_levels(symbols, escapes, norms, *setting, out, scale)


def add_powers(
    symbols: UInt8[Tensor, " n"],
    signs: Int32[Tensor, " words"],
    out: Float[Tensor, " n"],
    scale: float,
) -> None:
    """Adds scale * sign * 2^(symbol - 127) to each entry, in place; nothing where it is 0.

    Raises:
        ValueError: the sizes differ, or a symbol stands for infinity; `out` is unchanged.
    """
    backend = cpu if out.device.type == "cpu" else device
    largest, _ = backend.largest_and_count(symbols.numpy() if backend is cpu else symbols, 255)
    if len(symbols) != len(out) or len(signs) != word_count(len(out)) or largest == 255:
        raise ValueError(
            f"{len(symbols)} exponents up to {largest} and {len(signs)} words of signs"
        )
    if backend is cpu:
        words = aligned(signs).numpy().view(np.uint32)
        powers.add_powers(symbols.numpy(), words, out.numpy(), scale)
    else:
        device.add_powers(symbols, signs, out, scale)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where its bytes start at an odd place, as those of a frame may."""
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor


def moments(values: Float[Tensor, " n"]) -> tuple[float, float]:
    """The largest magnitude and the sum of squares, not finite where an entry is not."""
    if values.device.type != "cpu":
        return device.moments(values)
    largest, squares = cpu.moments(values.numpy())
    return float(largest), float(squares)


def round_to_powers(values: Float[Tensor, " n"], seed: int) -> UInt8[Tensor, " n"]:
    """The exponents of contiguous values below 2^127, each rounded at random to a power of two.

    An exponent e stands for 2^(e - 127), and 0 for zero; denormals go to zero or 2^-126.
    """
    if values.device.type != "cpu":
        return device.round_to_powers(values, seed)
    symbols = torch.empty(len(values), dtype=torch.uint8)
    powers.round_to_powers(values.numpy().view(np.int32), np.uint64(seed), symbols.numpy())
    return symbols
