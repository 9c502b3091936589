"""The setting that says how the weights come down to the workers of a parameter server."""

from typing import Final

from atomo.names import resolve

__all__ = ["AUTO", "UPDATES", "WEIGHTS", "canonical_downlink"]

AUTO: Final = "auto"
WEIGHTS: Final = "weights"
UPDATES: Final = "updates"


def canonical_downlink(text: str) -> str:
    """The setting as Atomo spells it.

    >>> canonical_downlink("Updates")
    'updates'

    Raises:
        ConfigError: it names no way down.
    """
    return resolve("way down", text, (AUTO, WEIGHTS, UPDATES))
