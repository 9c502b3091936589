"""The option `--hierarchical`: the ranks that count as one host."""

from typing import Final

from atomo.core.names import truth
from atomo.errors import ConfigError

__all__ = ["BY_NAME", "FLAT", "canonical_hierarchy"]

FLAT: Final = ""
BY_NAME: Final = "yes"
MOST_DIGITS: Final = 9


def canonical_hierarchy(text: str) -> str:
    """Parses `--hierarchical`: `FLAT`, `BY_NAME`, or the number of ranks that count as one host,
    each with the next.

    >>> canonical_hierarchy("no"), canonical_hierarchy("Yes"), canonical_hierarchy("04")
    ('', 'yes', '4')

    Raises:
        ConfigError: it is nothing of the kind.
    """
    word = text.strip()
    try:
        if not word.isdecimal() or len(word) > MOST_DIGITS:
            return BY_NAME if truth(word) else FLAT
        if int(word) > 1:
            return str(int(word))
        raise ConfigError(f"{word} is below 2")
    except ConfigError as error:
        raise ConfigError(
            f"--hierarchical {text}: give yes (hosts by their names), no, or how many ranks count "
            "as one host, 2 or more"
        ) from error
