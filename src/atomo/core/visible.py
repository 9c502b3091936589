"""External text, made safe to show: of bounded length, and without control characters.

An error text, a file name or a message of another program may have any characters. A terminal
obeys some of them: they move the cursor, change its title, or hide earlier text.
"""

import re
from typing import Final

__all__ = ["LONGEST_ERROR", "shorten", "visible"]

LONGEST_ERROR: Final = 2**16  # characters of an error text: the capacity of a pipe, in bytes
# Control characters except tabs and line ends, marks that change the direction of text, other line
# ends, and lone surrogates, which stand for bytes that could not be decoded.
HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Replaces characters that a terminal would obey by their escapes, as Python writes them.

    >>> print(visible("\x1b[31mred"))
    \x1b[31mred
    """
    return HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def shorten(text: str, longest: int = LONGEST_ERROR) -> str:
    r"""Leaves out the middle of a text of more than `longest` characters.

    >>> shorten("abcdefgh", 4)
    'ab\n... 4 characters left out ...\ngh'
    """
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
