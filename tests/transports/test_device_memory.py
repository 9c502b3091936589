"""MPI's support of memory on GPUs, and the messages about it."""

import pytest

from atomo.transports.mpi.device_memory import is_cuda_aware, staging
from atomo.transports.mpi.library import MPI


def test_the_library_at_hand_is_asked():
    found = is_cuda_aware()
    assert found is not None or MPI.get_vendor()[0] not in ("Open MPI", "MPICH")


def test_a_library_that_has_no_answer_gives_none():
    assert is_cuda_aware("libc.so.6") is None


@pytest.mark.parametrize(
    ("aware", "ending"),
    [
        (True, "Open MPI 5.0.11 takes CUDA memory, which frames have no use for"),
        (False, "Open MPI 5.0.11 takes no CUDA memory"),
        (None, "Open MPI 5.0.11 does not say"),
    ],
)
def test_a_line_says_how_frames_leave_gpus(aware, ending):
    line = staging(aware, "Open MPI 5.0.11")
    assert line.startswith("frames leave GPUs through pinned memory of their hosts; ")
    assert line.endswith(ending)
    assert "\n" not in line


def test_another_line_says_that_dense_sums_do_not():
    line = staging(True, "Open MPI 5.0.11", direct=True)
    assert line.startswith("dense sums go from GPU to GPU over Open MPI 5.0.11, which takes CUDA")
    assert line.endswith("frames leave GPUs through pinned memory of their hosts")
