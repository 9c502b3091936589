"""Ranges of numeric settings, with the reasons for their limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from atomo.errors import ConfigError

__all__ = ["ANY", "COUNT", "IMAGES", "PIXELS", "SECONDS", "THREADS", "Bound", "check"]


@final
@dataclass(frozen=True)
class Bound:
    """A range with both ends, except for `above` and `below`, and the reasons for the ends."""

    least: int | float
    most: int | float
    why_least: str = ""
    why_most: str = ""
    above: bool = False
    """True if `least` itself is out of the range."""
    below: bool = False
    """True if `most` itself is out of the range."""

    def complaint(self, value: int | float) -> str:
        """Describes why a value is out of range; empty: it is in range. NaN is in no range."""
        if not (value > self.least if self.above else value >= self.least):
            word = "above" if self.above else "at least"
            return f"must be {word} {self.least:g}, got {value}{reason(self.why_least)}"
        if not (value < self.most if self.below else value <= self.most):
            word = "below" if self.below else "at most"
            return f"must be {word} {self.most:.12g}, got {value}{reason(self.why_most)}"
        return ""


def reason(why: str) -> str:
    """Returns the end of a complaint."""
    return f": {why}" if why else ""


MUCH: Final = "nothing comes in such numbers"
ANY: Final[Bound] = Bound(0, 1e15, why_most=MUCH)  # 0 has a meaning of its own
COUNT: Final[Bound] = Bound(1, 1e15, why_most=MUCH)
IMAGES: Final[Bound] = Bound(1, 2**31 - 1, why_most="no batch has so many images")
PIXELS: Final[Bound] = Bound(0, 16_384, why_most="an image of that side would take gigabytes")
SECONDS: Final[Bound] = Bound(0, 1e7, why_most="that is four months", above=True)
THREADS: Final[Bound] = Bound(0, 1024, why_most="threads beyond the cores of a host only cost time")


def check(values: object, bounds: Mapping[str, Bound], name: Callable[[str], str]) -> None:
    """Raises ConfigError for the first attribute that is out of its range; None is in every range.

    Args:
        values: has an attribute for each bound.
        bounds: by the name of the attribute.
        name: returns the name of an attribute in the message.
    """
    for attribute, bound in bounds.items():
        value: Any = getattr(values, attribute)
        complaint = "" if value is None else bound.complaint(value)
        if complaint:
            raise ConfigError(f"{name(attribute)} {complaint}")
