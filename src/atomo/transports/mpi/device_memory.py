"""Whether the MPI library takes what lies on a GPU, and what becomes of it in any case.

Frames are made on hosts: what a GPU has encoded comes there through pinned memory, is compressed,
gets its checksum, and is checked before anything of it goes to another GPU. A library that can send
from a GPU serves dense sums alone, where there is no master; who runs a job is told, once.
"""

import ctypes
from typing import Final

from atomo.transports.mpi.library import MPI

__all__ = ["staging", "takes_device_memory"]

CUDA: Final = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH


def takes_device_memory(library: str | None = None) -> bool | None:
    """Whether MPI says that it takes memory of CUDA devices; None: it does not say.

    Args:
        library: the file of the library, or of what was linked with it; None: as mpi4py was.
    """
    loaded = ctypes.CDLL(MPI.__file__ if library is None else library)
    if hasattr(loaded, "MPIX_Query_cuda_support"):  # Open MPI
        return bool(loaded.MPIX_Query_cuda_support())
    if hasattr(loaded, "MPIX_GPU_query_support"):  # MPICH 4
        found = ctypes.c_int(0)
        loaded.MPIX_GPU_query_support(CUDA, ctypes.byref(found))
        return bool(found.value)
    return None


def staging(aware: bool | None, library: str, *, direct: bool = False) -> str:
    """One line on how what lies on a GPU travels over MPI.

    Args:
        aware: what `takes_device_memory` found.
        library: its name and version.
        direct: whether dense sums go from GPU to GPU.
    """
    if direct:
        return (
            f"dense sums go from GPU to GPU over {library}, which takes CUDA memory; frames leave "
            "GPUs through pinned memory of their hosts"
        )
    how = {True: "takes CUDA memory", False: "takes no CUDA memory", None: "does not say"}[aware]
    ending = ", which frames have no use for" if aware else ""
    return f"frames leave GPUs through pinned memory of their hosts; {library} {how}{ending}"
