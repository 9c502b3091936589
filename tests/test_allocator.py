"""What a step frees, the next one gets without asking the system."""

import os
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys
import torch
from atomo.allocator import WISHES, keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory()
for step in range(20):
    if step == 10:  # the heap has found its shape
        before = faults()
    (torch.zeros(10_000_000) + 1.0).sum()
print(kept, (faults() - before) * resource.getpagesize() // 10)
"""


def bytes_faulted(**environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and how much of 80 MB the system had to map anew in each step."""
    given = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS], env=given, capture_output=True, text=True, check=True
    )
    kept, faulted = done.stdout.split()
    return kept == "True", int(faulted)


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.confstr("CS_GNU_LIBC_VERSION") is None,
    reason="the C library is not glibc",
)
def test_no_step_maps_memory_anew():
    kept, faulted = bytes_faulted()
    assert kept
    assert faulted < 1_000_000


def test_the_environment_has_the_last_word():
    kept, _ = bytes_faulted(MALLOC_TRIM_THRESHOLD_="1000000")
    assert not kept
