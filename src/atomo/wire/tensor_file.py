"""Tensors by name as a safetensors file, without a copy of all of it beside the tensors.

    offset  bytes
    0       8      length of the head, little-endian
    8       ...    JSON: dtype, shape, and first and last byte of each tensor; spaces, up to a
                   multiple of 8
            ...    tensors, one after the other, those with the widest entries first

The bytes are those of the package `safetensors`, which builds a whole file in memory and copies
tensors when it reads. Files are untrusted input.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from atomo.errors import CodecError, FrameError
from atomo.wire.compression import Bytes
from atomo.wire.frame import as_bytes
from atomo.wire.sections import MOST_DIMENSIONS

__all__ = ["TensorFile", "read_tensor_file", "tensor_file"]

LENGTH: Final = struct.Struct("<Q")
ALIGNMENT: Final = 8
MOST: Final = 2**62  # entries, and of an empty tensor the product of its other dimensions
# In the order in which they lie in a file.
NAMES: Final = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
DTYPES: Final = {name: dtype for dtype, name in NAMES.items()}
PLACES: Final = {dtype: place for place, dtype in enumerate(NAMES)}


@final
@dataclass(frozen=True, eq=False)
class TensorFile:
    """A file that is made as it is read."""

    head: bytes
    tensors: tuple[Tensor, ...]
    """In their order in the file; of any device and stride, and they may share storage."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.head) + sum(tensor.nbytes for tensor in self.tensors)

    def pieces(self) -> Iterator[Bytes]:
        """Yields the file in order: views of the tensors that are contiguous and on the CPU."""
        yield np.frombuffer(self.head, np.uint8)
        for tensor in self.tensors:
            yield as_bytes(tensor)


def tensor_file(tensors: Mapping[str, Tensor]) -> TensorFile:
    """Builds the file of tensors.

    Raises:
        CodecError: a tensor has a dtype that the format lacks.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in PLACES:
            raise CodecError(f"{name!r} is of {tensor.dtype}, which no file of tensors has")
    names = sorted(tensors, key=lambda name: (PLACES[tensors[name].dtype], name))
    listed, stop = {}, 0
    for name in names:
        start, stop = stop, stop + tensors[name].nbytes
        kind, shape = NAMES[tensors[name].dtype], list(tensors[name].shape)
        listed[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return TensorFile(LENGTH.pack(len(text)) + text, tuple(tensors[name] for name in names))


@final
class Row(NamedTuple):
    """The entry of a tensor in the header of a file."""

    start: int  # bytes, from the end of the head
    stop: int
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def read_tensor_file(data: Bytes) -> dict[str, Tensor]:
    """Reads the tensors of a file: views of its bytes, if these are aligned and writable.

    Raises:
        FrameError: the bytes are no such file, or have an unknown dtype; nothing was allocated.
    """
    head, body = divided(data)
    rows = sorted(row_of(name, entry) for name, entry in head.items())
    ends = [0, *(row.stop for row in rows)]
    # No byte is of two tensors, or of none.
    if [*(row.start for row in rows), body.size] != ends:
        raise FrameError(f"tensors do not follow each other in the {body.size} bytes of a file")
    return {row.name: tensor_of(row, body[row.start : row.stop]) for row in rows}


def divided(data: Bytes) -> tuple[dict[str, Any], Bytes]:
    """Splits a file into its parsed header and the rest."""
    size = LENGTH.unpack_from(data.data)[0] if data.size >= LENGTH.size else 0
    end = LENGTH.size + size
    if not size or end > data.size:
        raise FrameError(f"a file of tensors of {data.size} bytes with a head of {size} bytes")
    try:
        head = json.loads(data[LENGTH.size : end].tobytes())
    except (ValueError, RecursionError, MemoryError) as error:
        raise FrameError(f"the head of a file of tensors is no JSON: {error}") from error
    if not isinstance(head, dict):
        raise FrameError("the head of a file of tensors does not name them")
    return head, data[end:]


def row_of(name: str, entry: object) -> Row:
    """Reads the header's entry of a tensor, and checks its size against its shape and dtype."""
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
            whole = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= MOST_DIMENSIONS
            if whole and kind in DTYPES and math.prod(max(n, 1) for n in shape) < MOST:
                row = Row(start, stop, name, DTYPES[kind], tuple(shape))
                if stop - start == math.prod(shape) * row.dtype.itemsize:
                    return row
    raise FrameError(f"{name[:80]!r} is {str(entry)[:200]} in a file of tensors")


def tensor_of(row: Row, body: Bytes) -> Tensor:
    """Reads one tensor of a file."""
    if not body.size:
        return torch.empty(row.shape, dtype=row.dtype)
    shared = body.flags.writeable and body.ctypes.data % row.dtype.itemsize == 0
    return torch.from_numpy(body if shared else body.copy()).view(row.dtype).view(row.shape)
