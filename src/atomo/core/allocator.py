"""The C library's allocator, told that every step needs what the last one freed.

By default glibc gives large blocks back to the system, and the next step has each of their pages
mapped and cleared again: of a gradient of 45 MB that costs as much as copying it several times.
"""

import ctypes
import os
from typing import Final

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD and M_MMAP_MAX of <malloc.h>
MMAP_MAX: Final = -4
NEVER: Final = 2**31 - 1
# Whoever sets one of these has a wish of their own.
WISHES: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
                 "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")  # fmt: skip


def keep_freed_memory() -> bool:
    """Makes this process keep its freed memory for itself. Returns whether it does.

    It does not where the C library is another one than glibc, or where the environment says what
    its allocator should do.
    """
    if any(wish in os.environ for wish in WISHES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, NEVER))
