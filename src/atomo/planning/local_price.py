"""The price of local steps: the loss above that of data-parallel training at equal samples.

`PUBLISHED` is from Charles et al., "Communication-Efficient Language Model Training Scales
Reliably and Robustly: Scaling Laws for DiLoCo", 2025 (arXiv:2503.09799), 30 steps in a round,
uncompressed. `MEASURED` is from benchmarks/local_steps.py of this project.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

__all__ = ["MEASURED", "PUBLISHED", "Price", "prices_near"]

REPLICAS: Final = (2, 4, 8)


@final
@dataclass(frozen=True)
class Price:
    """The increase of a loss."""

    parameters: int
    replicas: int
    every: int
    """Steps in a round."""
    percent: float
    """Relative to the loss of data-parallel training."""
    source: str

    def __str__(self) -> str:
        return (
            f"{self.percent:+.1f} % with {number_text(self.parameters)} parameters, "
            f"{self.replicas} replicas and {self.every} steps in a round ({self.source})"
        )


PUBLISHED: Final[Mapping[int, tuple[float, float, float]]] = MappingProxyType(
    {
        35_000_000: (0.7, 2.0, 3.9),
        550_000_000: (0.2, 0.8, 1.7),
        2_400_000_000: (-0.1, 0.3, 1.1),
    }
)
"""Percent for 2, 4 and 8 replicas, by parameters; 30 steps in a round."""
PUBLISHED_EVERY: Final = 30
MEASURED: Final[Mapping[int, float]] = MappingProxyType({8: 12.3, 32: 23.4})
"""Percent by steps in a round: characters, 826,208 parameters, 4 replicas, AdamW, uncompressed, the
first 512 steps of a training.
"""
MEASURED_PARAMETERS: Final = 826_208
MEASURED_REPLICAS: Final = 4


def prices_near(parameters: int, replicas: int, every: int) -> list[Price]:
    """Returns the price of our own study and the published price that are nearest in kind."""
    steps = min(MEASURED, key=lambda steps: ratio(steps, every))
    source = "uncompressed, 512 steps on characters, measured with Atomo"
    measured = Price(MEASURED_PARAMETERS, MEASURED_REPLICAS, steps, MEASURED[steps], source)
    size = min(PUBLISHED, key=lambda size: ratio(size, max(1, parameters)))
    column = min(range(len(REPLICAS)), key=lambda column: ratio(REPLICAS[column], replicas))
    percent = PUBLISHED[size][column]
    source = "uncompressed on C4, published for DiLoCo, not measured here"
    return [measured, Price(size, REPLICAS[column], PUBLISHED_EVERY, percent, source)]


def ratio(a: int | float, b: int | float) -> float:
    """Returns the larger of two positive numbers over the smaller."""
    return max(a, b) / min(a, b)


def number_text(count: int) -> str:
    """Returns a number in a unit that suits it.

    >>> number_text(826_208), number_text(2_400_000_000)
    ('0.8 M', '2.4 B')
    """
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
