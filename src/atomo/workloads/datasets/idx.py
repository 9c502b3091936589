"""The idx format of MNIST: a magic number, the size of each dimension, then the entries.

The magic number is two zero bytes, the type of an entry (8: an unsigned byte) and the number of
dimensions; sizes are big-endian 32-bit integers.
"""

import gzip
import math
import struct
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final, cast

import torch
from jaxtyping import UInt8
from torch import Tensor

from atomo.core.safe_read import memory_bytes, open_plain
from atomo.errors import DataError

__all__ = ["read_idx"]

UNSIGNED_BYTE = 8
PIECE: Final = 2**24  # bytes that are read at a time


def read_idx(path: Path, dimensions: int) -> UInt8[Tensor, "..."]:
    """Reads a file of unsigned bytes; a file with a name that ends in `.gz` is decompressed.

    Raises:
        DataError: the file cannot be read, is cut short, or is not such a file.
    """
    start = 4 + 4 * dimensions
    content = read_bytes(path, start)
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if content[:4] != magic or len(content) < start:
        raise DataError(f"{path} starts with {content[:4].hex()}, not with {magic.hex()} and sizes")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise DataError(
            f"{path} holds {len(content) - start} entries; its header says {[*shape]}, "
            f"which is {math.prod(shape)}"
        )
    if not math.prod(shape):
        raise DataError(f"{path} is empty; its header says {[*shape]}")
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).view(shape)


def read_bytes(path: Path, start: int) -> bytearray:
    """Returns the content of a file, writable as torch requires.

    Reads at most a byte more than the size in the header, which is the first `start` bytes.
    """
    try:
        with open_plain(path, linked=True) as plain, unpacked(path, plain) as file:
            content = bytearray(file.read(start))
            if len(content) == start:
                remaining = 1 + math.prod(struct.unpack(f">{(start - 4) // 4}I", content[4:start]))
                while remaining <= memory_bytes() and (piece := file.read(min(remaining, PIECE))):
                    content += piece
                    remaining -= len(piece)
            return content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def unpacked(path: Path, file: BinaryIO) -> AbstractContextManager[BinaryIO]:
    """Returns the file, decompressed if its name ends in `.gz`."""
    if path.suffix != ".gz":
        return nullcontext(file)
    return cast("BinaryIO", gzip.open(file))
