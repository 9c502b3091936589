"""Scales of axes: units that suit the values, round ticks, and places on the picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from jaxtyping import Float64

__all__ = [
    "BYTES",
    "PLAIN",
    "SECONDS",
    "AxisScale",
    "ChartAxis",
    "Unit",
    "Values",
    "axis_scale",
    "tick_text",
]

Values = Float64[np.ndarray, " n"]
TICKS: Final = 5  # about as many are drawn
LARGEST: Final = 1e100  # of a value that is drawn: a difference of two is finite
MOST_TICKS: Final = 50
STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
LEAST: Final = 0.01  # of the largest value: the ticks of a smaller range would have equal texts
WIDE: Final = 30.0  # ratio of the largest to the smallest value from which on a scale is a power's
DECADES: Final = 6  # more => every second power of ten has a tick


@final
@dataclass(frozen=True)
class Unit:
    """A unit of an axis, and the value that it stands for."""

    text: str
    size: float = 1.0


PLAIN: Final = (Unit(""),)
SECONDS: Final = (Unit("ms", 1e-3), Unit("s"), Unit("min", 60.0), Unit("h", 3600.0))
BYTES: Final = (Unit("B"), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12))


@final
@dataclass(frozen=True)
class ChartAxis:
    """The label of an axis, and the units that it may have, from small to large, one of size 1."""

    label: str
    units: Sequence[Unit] = PLAIN
    percent: bool = False
    """True if values are fractions, shown as percentages."""
    may_be_log: bool = False
    """True if the scale is logarithmic where positive values differ much."""


@final
@dataclass(frozen=True)
class AxisScale:
    """An axis with its limits: values become shares of its length, from 0 to 1."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    """Value and text of each tick."""
    log: bool = False

    def shares(self, values: Values) -> Values:
        """Returns the places of values; NaN for a value that has none."""
        low, high = self._transformed(np.array([self.low, self.high]))
        shares: Values = (self._transformed(values) - low) / (high - low)
        return shares

    def _transformed(self, values: Values) -> Values:
        if not self.log:
            return values
        powers: Values = np.full(len(values), np.nan)
        powers[values > 0] = np.log10(values[values > 0])
        return powers


def axis_scale(axis: ChartAxis, values: Values) -> AxisScale:
    """Returns the scale of an axis that shows all finite values."""
    finite = values[np.abs(values) < LARGEST]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if axis.may_be_log and low > 0 and high > WIDE * low:
        label = labelled(axis, next(unit for unit in axis.units if unit.size == 1))
        return AxisScale(label, low, high, power_ticks(low, high), log=True)
    if axis.percent:
        return linear_scale(f"{axis.label} (%)", low, high, 0.01)
    unit = unit_for(axis.units, max(abs(low), abs(high)))
    return linear_scale(labelled(axis, unit), low, high, unit.size)


def labelled(axis: ChartAxis, unit: Unit) -> str:
    """Returns the label of an axis with its unit."""
    return f"{axis.label} ({unit.text})" if unit.text else axis.label


def linear_scale(label: str, low: float, high: float, unit: float) -> AxisScale:
    """Returns a scale whose limits are round numbers of the unit."""
    largest = max(abs(low), abs(high))
    if not high > low:  # also where a difference is lost in rounding
        padding = largest / 2 or unit / 2
        low, high = low - padding * (low != 0), high + padding
    elif high - low < LEAST * largest:
        low, high = low - LEAST * largest / 2, high + LEAST * largest / 2
    step = round_step((high - low) / unit / TICKS)
    first, last = math.floor(low / unit / step + 1e-9), math.ceil(high / unit / step - 1e-9)
    # Of numbers that differ in their last bits alone, first and last may be far apart or equal.
    last = min(max(last, first + 1), first + MOST_TICKS)
    numbers = [index * step for index in range(first, last + 1)]
    ticks = [(number * unit, tick_text(number)) for number in numbers]
    return AxisScale(label, ticks[0][0], ticks[-1][0], ticks)


def power_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Returns ticks at powers of ten between two positive values, and between them if few."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = range(first, last + 1, 1 + (last - first) // DECADES)
    factors = (1, 2, 5) if last - first < 2 else (1,)
    values = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in factors]
    values = values if len(factors) > 1 else [10.0**power for power in powers]
    return [(value, tick_text(value)) for value in values if low <= value <= high]


def round_step(width: float) -> float:
    """Returns the smallest round number of at least `width`."""
    if not 0 < width < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(factor * power for factor in STEPS if factor * power >= width * (1 - 1e-9))


def unit_for(units: Sequence[Unit], largest: float) -> Unit:
    """Returns the largest unit of which the largest value has at least two; else the smallest."""
    fitting = [unit for unit in units if largest >= 2 * unit.size]
    return fitting[-1] if fitting else units[0]


def tick_text(value: float) -> str:
    """Returns a number in few characters.

    >>> tick_text(20000.0), tick_text(0.30000000000000004), tick_text(1.5e6), tick_text(1e-5)
    ('20k', '0.3', '1.5M', '1e-05')
    """
    for least, size, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if least <= abs(value) < 1e12:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
