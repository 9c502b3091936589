"""Bytes of five trits, nearly all 0, as one byte for each non-zero trit, and back.

Trit d of byte b is b // 3^d mod 3, and a trit of 1 is a zero. Byte 2 g + s is a trit of 2 (s = 0)
or 0 (s = 1) after g zeros, and FAR and above stand for LONGEST_GAP zeros. Zeros at the end are
left out.
"""

from typing import Final

__all__ = ["FAR", "LONGEST_GAP", "MAX_SYMBOL", "ZEROS"]

ZEROS: Final = 121  # five trits of zero
MAX_SYMBOL: Final = 2 * ZEROS  # the largest byte of five trits
LONGEST_GAP: Final = 126
FAR: Final = 2 * LONGEST_GAP
