"""Quantities with a unit, as people give them."""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from atomo.errors import ConfigError

__all__ = ["bits_per_second", "seconds", "speed_text"]

SPEEDS: Final[Mapping[str, float]] = MappingProxyType({"kbit": 1e3, "mbit": 1e6, "gbit": 1e9})
TIMES: Final[Mapping[str, float]] = MappingProxyType({"us": 1e-6, "ms": 1e-3, "s": 1.0})
QUANTITY: Final = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))\s*([a-zA-Z]+)\s*")


def bits_per_second(text: str, name: str) -> float:
    """Returns a bandwidth.

    >>> bits_per_second("1.5Gbit", "--bandwidth")
    1500000000.0

    Args:
        text: a number and `kbit`, `mbit` or `gbit`.
        name: of the option, for the message.

    Raises:
        ConfigError: the text is no bandwidth, or 0.
    """
    bandwidth = quantity(text, name, SPEEDS)
    if bandwidth <= 0:
        raise ConfigError(f"{name} must be above 0, got {text}: nothing would ever arrive")
    return bandwidth


def seconds(text: str, name: str) -> float:
    """Returns a time.

    >>> seconds("5ms", "--latency")
    0.005

    Args:
        text: a number and `us`, `ms` or `s`.
        name: of the option, for the message.

    Raises:
        ConfigError: the text is no time, or below 0.
    """
    duration = quantity(text, name, TIMES)
    if duration < 0:
        raise ConfigError(f"{name} must be at least 0, got {text}")
    return duration


def quantity(text: str, name: str, units: Mapping[str, float]) -> float:
    """Returns a number times its unit."""
    match = QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ConfigError(
            f"{name} {text!r}: give a number with one of {', '.join(units)}, e.g. 1{[*units][-2]}"
        )
    value = float(match[1]) * units[match[2].lower()]
    if math.isinf(value):
        raise ConfigError(f"{name} {text!r}: there is no such number")
    return value


def speed_text(bits: float) -> str:
    """Returns a bandwidth for people; `any` is above all bandwidths.

    >>> speed_text(2.5e9), speed_text(3e5), speed_text(float("inf")), speed_text(0.0)
    ('2.5 Gbit/s', '0.3 Mbit/s', 'any', 'never')
    """
    if math.isinf(bits):
        return "any"
    if not bits:
        return "never"
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
