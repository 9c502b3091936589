"""What one rank says of a bucket: which parameters it used and their frame, or what went wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import final

import numpy as np

from atomo.errors import FrameError
from atomo.wire import Bytes

__all__ = ["Kind", "Message", "read", "write"]


class Kind(IntEnum):
    """What a message holds."""

    CODED = 0  # the parameters that were used, and their frame; no frame where none was
    NOT_FINITE = 1  # the parameters whose gradient holds NaN or infinity
    REFUSED = 2  # no parameters, and why the gradient could not be encoded: UTF-8


@final
@dataclass(frozen=True)
class Message:
    """One rank's part in the average of one bucket."""

    kind: Kind
    marked: tuple[bool, ...]
    """For each parameter of the bucket, in its order."""
    body: Bytes


def write(kind: Kind, marked: Sequence[bool], body: Bytes) -> Bytes:
    """The bytes of a message: never none."""
    bits = np.packbits(np.array(marked, bool))
    return np.concatenate([np.array([kind], np.uint8), bits, body])


def read(data: Bytes, parameters: int) -> Message:
    """The inverse of `write`.

    Raises:
        FrameError: it is no message about so many parameters.
    """
    size = 1 + -(-parameters // 8)
    if data.size < size or data[0] not in Kind.__members__.values():
        raise FrameError(f"{data.size} bytes are no message about {parameters} parameters")
    marked = np.unpackbits(data[1:size], count=parameters).astype(bool).tolist()
    return Message(Kind(int(data[0])), tuple(marked), data[size:])
