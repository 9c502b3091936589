"""Serialization of payloads to frames, and deserialization with all checks."""

from atomo.wire.batch import Sections
from atomo.wire.buffer import FrameBuffer
from atomo.wire.compression import Bytes, Compression
from atomo.wire.frame import (
    Header,
    claimed_kind,
    pack,
    pack_bytes,
    pack_pieces,
    read_header,
    unpack,
)
from atomo.wire.kinds import Flag, Kind
from atomo.wire.tensor_file import TensorFile, read_tensor_file, tensor_file

__all__ = [
    "Bytes",
    "Compression",
    "Flag",
    "FrameBuffer",
    "Header",
    "Kind",
    "Sections",
    "TensorFile",
    "claimed_kind",
    "pack",
    "pack_bytes",
    "pack_pieces",
    "read_header",
    "read_tensor_file",
    "tensor_file",
    "unpack",
]
