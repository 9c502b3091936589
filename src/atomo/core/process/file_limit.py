"""The largest file that this process may write, as `ulimit -f` sets it.

A write beyond it fails with EFBIG: Python ignores the signal that would end the process, and mpirun
does not.
"""

import resource

__all__ = ["file_limit"]


def file_limit() -> int | None:
    """Returns the limit in bytes; None if there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit
