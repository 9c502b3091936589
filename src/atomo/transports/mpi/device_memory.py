"""CUDA-awareness of the MPI library, and its report to the user.

Frames are made on hosts: the encoded data of a GPU arrives there through pinned memory, is
compressed and checksummed, and is checked before any of it reaches another GPU. A CUDA-aware
library therefore helps dense sums only, in jobs without a master. A line to the user says so once.
"""

import ctypes
from typing import Final

from atomo.transports.mpi.library import MPI

__all__ = ["is_cuda_aware", "staging"]

CUDA: Final = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH


def is_cuda_aware(library: str | None = None) -> bool | None:
    """Returns True if MPI reports that it accepts memory of CUDA devices; None if it does not
    report either way.

    Args:
        library: the file of the library, or of a module linked with it; None: the library of
            mpi4py.
    """
    loaded = ctypes.CDLL(MPI.__file__ if library is None else library)
    if hasattr(loaded, "MPIX_Query_cuda_support"):  # Open MPI
        return bool(loaded.MPIX_Query_cuda_support())
    if hasattr(loaded, "MPIX_GPU_query_support"):  # MPICH 4
        supported = ctypes.c_int(0)
        loaded.MPIX_GPU_query_support(CUDA, ctypes.byref(supported))
        return bool(supported.value)
    return None


def staging(aware: bool | None, library: str, *, direct: bool = False) -> str:
    """Returns one line on how data of a GPU travels over MPI.

    Args:
        aware: result of `is_cuda_aware`.
        library: its name and version.
        direct: True if dense sums go from GPU to GPU.
    """
    if direct:
        return (
            f"dense sums go from GPU to GPU over {library}, which takes CUDA memory; frames leave "
            "GPUs through pinned memory of their hosts"
        )
    how = {True: "takes CUDA memory", False: "takes no CUDA memory", None: "does not say"}[aware]
    ending = ", which frames have no use for" if aware else ""
    return f"frames leave GPUs through pinned memory of their hosts; {library} {how}{ending}"
