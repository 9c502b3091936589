"""Settings of the C library's allocator for steps that need the same memory again.

By default glibc returns large freed blocks to the system. The next step then has each of their
pages mapped and cleared again: for a gradient of 45 MB this costs as much as several copies.
"""

import ctypes
import os
from typing import Final

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD and M_MMAP_MAX of <malloc.h>
MMAP_MAX: Final = -4
NEVER: Final = 2**31 - 1
# A user who sets a variable of these has configured the allocator.
WISHES: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
                 "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")  # fmt: skip


def keep_freed_memory() -> bool:
    """Makes this process keep its freed memory. Returns True on success.

    Returns False with another C library than glibc, or with an environment that configures the
    allocator.
    """
    if any(wish in os.environ for wish in WISHES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, NEVER))
