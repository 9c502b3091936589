"""Reading and writing the small integers and strings of a header.

Integers are LEB128 varints: one byte up to 127, which covers most integers of a header.
"""

from typing import final

from atomo.errors import FrameError

__all__ = ["Cursor", "string", "varint"]

LONGEST_VARINT = 9  # bytes: 63 bits


def varint(value: int) -> bytes:
    """Encodes a non-negative integer.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str) -> bytes:
    """Encodes a string: its length, then UTF-8."""
    data = text.encode()
    return varint(len(data)) + data


@final
class Cursor:
    """Reader of untrusted bytes, from front to back.

    Every read raises FrameError if the bytes end too early or are malformed.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def byte(self) -> int:
        """Reads one byte, as a number."""
        # Without `take`: a header is read byte by byte, and each slice is an object.
        if self.position >= len(self._data):
            raise FrameError("the frame ends early: 1 more bytes expected, 0 left")
        self.position += 1
        return self._data[self.position - 1]

    def take(self, count: int) -> memoryview:
        """Reads the next `count` bytes, without a copy."""
        remaining = len(self._data) - self.position
        if count > remaining:
            raise FrameError(f"the frame ends early: {count} more bytes expected, {remaining} left")
        self.position += count
        return self._data[self.position - count : self.position]

    def varint(self) -> int:
        """Reads one integer."""
        value = self.byte()
        if value < 0x80:
            return value
        value &= 0x7F
        for place in range(1, LONGEST_VARINT):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise FrameError(f"an integer in the header is longer than {LONGEST_VARINT} bytes")

    def string(self) -> str:
        """Reads one string."""
        try:
            return bytes(self.take(self.varint())).decode()
        except UnicodeDecodeError as error:
            raise FrameError(f"a name in the header is not UTF-8: {error}") from error
