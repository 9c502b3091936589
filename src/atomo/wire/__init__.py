"""Payloads to bytes and back: the one place where bytes are made, and trusted nowhere."""

from atomo.wire.batch import Sections
from atomo.wire.compression import Bytes, Compression
from atomo.wire.frame import Flag, Header, Kind, pack, read_header, unpack

__all__ = [
    "Bytes",
    "Compression",
    "Flag",
    "Header",
    "Kind",
    "Sections",
    "pack",
    "read_header",
    "unpack",
]
