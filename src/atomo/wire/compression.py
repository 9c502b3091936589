"""blosc for the sections of a frame: only if it saves bytes, and only with a valid header."""

from functools import cache
from typing import Final

import blosc
import blosc.blosc_extension
import numpy as np
from jaxtyping import UInt8

from atomo.errors import FrameError
from atomo.options.compression import Compression

__all__ = ["MOST_GAIN", "Bytes", "Compression", "compress", "decompress_into"]

Bytes = UInt8[np.ndarray, "_"]

FILTERS: Final = {"none": blosc.NOSHUFFLE, "byte": blosc.SHUFFLE, "bit": blosc.BITSHUFFLE}
SMALLEST = 128  # bytes; below this size blosc's header is larger than the gain
PROBE = 1 << 14  # bytes of each piece that is tried before the rest is
PROBES = 3
# Compressed over raw; at more than this the section is stored raw. lz4 takes 6 % off random float32
# at the price of 14 copies: time in which a gigabit link would have sent more than that.
GAIN = 0.9
PROBE_GAIN = 0.92  # small pieces compress less well
HEADER = 16  # bytes, of a blosc buffer
MOST_GAIN = 2**15  # raw over compressed; zstd makes zeros 18,400 times smaller, the others 930


def compress(raw: Bytes, item_size: int, how: Compression) -> Bytes | None:
    """Compresses `raw`; returns None where storing it uncompressed is better."""
    if how.codec == "none" or not SMALLEST <= raw.size <= blosc.MAX_BUFFERSIZE:
        return None
    if raw.size > 2 * PROBES * PROBE and not promising(raw, item_size, how):
        return None
    return pays(raw, item_size, how, GAIN)


def promising(raw: Bytes, item_size: int, how: Compression) -> bool:
    """Returns True if most samples from the start, the middle and the end become smaller."""
    starts = np.linspace(0, raw.size - PROBE, PROBES).astype(np.int64) // item_size * item_size
    pieces = (raw[start : start + PROBE] for start in starts)
    tried = [pays(piece, item_size, how, PROBE_GAIN) is not None for piece in pieces]
    return 2 * sum(tried) > len(tried)


def pays(raw: Bytes, item_size: int, how: Compression, gain: float) -> Bytes | None:
    """Compresses `raw`; returns None unless the result is smaller by enough."""
    single_thread()
    items, shuffle = raw.size // item_size, FILTERS[how.shuffle]
    packed = blosc.compress_ptr(raw.ctypes.data, items, item_size, how.level, shuffle, how.codec)
    return np.frombuffer(packed, np.uint8) if len(packed) < gain * raw.size else None


def decompress_into(packed: memoryview, out: Bytes) -> None:
    """Fills `out` exactly.

    Raises:
        FrameError: `packed` is not a blosc buffer of `out.size` bytes.
    """
    if len(packed) < HEADER:
        raise FrameError(f"a compressed section of {len(packed)} bytes; at least {HEADER}")
    # blosc writes as many bytes as the header states, so this must be the size of `out`.
    size, stored, _ = blosc.get_cbuffer_sizes(bytes(packed[:HEADER]))
    if (size, stored) != (out.size, len(packed)):
        raise FrameError(
            f"a compressed section claims {stored} -> {size} bytes; it has {len(packed)}, "
            f"and {out.size} are expected"
        )
    single_thread()
    try:
        blosc.decompress_ptr(packed, out.ctypes.data)
    except blosc.blosc_extension.error as error:
        raise FrameError(f"a compressed section is damaged: {error}") from error


@cache
def single_thread() -> None:
    """Keeps blosc from starting a thread pool: other threads use the cores already."""
    blosc.set_nthreads(1)
