"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name.

    >>> nearest("lunch", ["launch", "plan"])
    "did you mean 'launch'? known: launch, plan"
    """
    spellings = list(candidates)
    close = difflib.get_close_matches(name, spellings, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(spellings) or 'none'}"
