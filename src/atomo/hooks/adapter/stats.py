"""The costs of averaging gradients so far."""

from dataclasses import dataclass
from typing import final

__all__ = ["Stats"]


@final
@dataclass
class Stats:
    """One rank's sums over all steps."""

    steps: int = 0
    skipped: int = 0  # of them, steps with a gradient that was not finite
    dense_bytes: int = 0  # what the gradients have as they are
    sent_bytes: int = 0  # what this rank gave in their place
    encode_s: float = 0.0  # memory and codec
    exchange_s: float = 0.0  # waiting for the others included
    decode_s: float = 0.0
    waited_s: float = 0.0  # in backward(), once all gradients were there; lower => more was hidden

    @property
    def ratio(self) -> float:
        """The factor by which fewer bytes are sent than the gradients have."""
        return self.dense_bytes / max(1, self.sent_bytes)
