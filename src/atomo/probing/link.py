"""The time of a message on the links: so much by itself, and so much for each byte."""

from dataclasses import dataclass
from typing import final

__all__ = ["Line"]


@final
@dataclass(frozen=True)
class Line:
    """Seconds over bytes."""

    start_s: float = 0.0
    """Of a message without bytes."""
    byte_s: float = 0.0

    @staticmethod
    def through(few: tuple[float, float], many: tuple[float, float]) -> "Line":
        """The line through two measurements, neither of whose numbers is below 0.

        Args:
            few: bytes and seconds of a small message.
            many: of a large one.

        >>> Line.through((0.0, 0.5), (100.0, 1.5))
        Line(start_s=0.5, byte_s=0.01)
        >>> Line.through((100.0, 1.0), (100.0, 3.0))
        Line(start_s=0.0, byte_s=0.02)
        """
        (less, small_s), (more, large_s) = few, many
        if more > less:
            byte_s = max(large_s - small_s, 0.0) / (more - less)
        else:
            byte_s = (small_s + large_s) / (less + more) if less + more else 0.0
        return Line(max(small_s - byte_s * less, 0.0), byte_s)
