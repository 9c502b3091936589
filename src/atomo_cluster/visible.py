"""Text from hosts, files and AWS, made safe to show: without control characters.

A terminal executes some control characters: they move the cursor, change its title, or hide the
text before them.
"""

import re
from typing import Final

__all__ = ["visible"]

# Control characters but for tabs and ends of lines, marks that change the direction of text, other
# ends of lines, and the halves of characters that stand for bytes of no encoding.
HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Replaces control characters by their escapes, as Python writes them.

    >>> print(visible("\x1b[31mred"))
    \x1b[31mred
    """
    return HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)
