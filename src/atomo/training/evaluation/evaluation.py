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
    """The task's metrics and the loss, by their keys; the loss is NaN or infinite once the training
    has diverged. Those of averaged weights stand beside them, their keys after `average_`."""
    samples: int
    task: str
    """Its specification, which says what the values are."""
