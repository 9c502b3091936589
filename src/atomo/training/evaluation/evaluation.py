"""The result of an evaluation: a record that becomes a line of JSON, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["AVERAGED", "Evaluation"]

AVERAGED: Final = "average_"  # before the key of a value


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one checkpoint on the test split."""

    step: int
    values: Mapping[str, float]
    """The task's metrics and the loss, by their keys; the loss of a diverged training is NaN or
    infinite. The keys of averaged weights have the prefix `average_`."""
    samples: int
    task: str
    """Specification of the task, which defines the metrics."""
