"""Totals over a whole run: gradients requested, used, late, refused and lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["GradientTotals"]


@final
@dataclass(frozen=True)
class GradientTotals:
    """Gradients, or the images that they are of."""

    asked: int = 0
    used: int = 0
    late: int = 0
    lost: int = 0
    refused: int = 0

    def __add__(self, other: GradientTotals) -> GradientTotals:
        """Returns both together."""
        return GradientTotals(
            self.asked + other.asked,
            self.used + other.used,
            self.late + other.late,
            self.lost + other.lost,
            self.refused + other.refused,
        )

    @property
    def text(self) -> str:
        """One line; empty where all of them counted."""
        if not (self.late or self.lost or self.refused):
            return ""
        pending = self.asked - self.used - self.late - self.lost - self.refused
        line = f"{self.asked:,}: {self.used:,} used, {self.late:,} late, {self.lost:,} lost"
        line += f", {self.refused:,} refused" if self.refused else ""
        return line + (f", {pending:,} under way" if pending else "")
