"""Memory that a step frees serves the next step without a call to the system."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

COUNT_FAULTS = """
import resource, sys
import torch
from atomo.core.process.allocator import WISHES, keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept, counts = keep_freed_memory(), [faults()]
for step in range(21):
    (torch.zeros(10_000_000) + 1.0).sum()
    counts.append(faults())
# Of most: where something small lies between the blocks, the heap grows by one of them once.
print(kept, sorted(b - a for a, b in zip(counts, counts[1:]))[10] * resource.getpagesize())
"""

COUNT_FAULTS_OF_CODECS = """
import resource
import torch
from atomo.core.process.allocator import keep_freed_memory
from atomo.codecs import CODECS, make_codec
from atomo.exchange.compressor import add_frame
from atomo.fusion import plan
from atomo.options.grouping import ONE, megabytes
from atomo.analysis.measure import encoder

keep_freed_memory()
torch.set_num_threads(1)
shape = torch.Size([1000, 1000])
flat = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1)) * 0.001
total = torch.zeros_like(flat)
for name in CODECS:
    (bucket,) = plan([("weight", shape)], make_codec(name), ONE)
    encode = encoder(make_codec(name), None)
    for step in range(28):
        if step == 24:  # the heap has found its shape
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        add_frame(bucket, encode(bucket, flat.clone(), step), total, 1.0)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(name, faults * resource.getpagesize() // 4)
"""
glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.confstr("CS_GNU_LIBC_VERSION") is None,
    reason="the C library is not glibc",
)


def printed(code: str, **environment: str) -> list[str]:
    """Returns the words that a process of its own prints."""
    variables = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@glibc
def test_no_step_maps_memory_anew():
    """Each step allocates 80 MB."""
    kept_memory, faulted = printed(COUNT_FAULTS)
    assert kept_memory == "True"
    assert int(faulted) < 1_000_000


def test_the_environment_has_the_last_word():
    code = "from atomo.core.process.allocator import keep_freed_memory; print(keep_freed_memory())"
    assert printed(code, MALLOC_TRIM_THRESHOLD_="1000000") == ["False"]


@pytest.mark.long
@glibc
def test_no_codec_maps_a_gradient_anew_at_each_step():
    words = printed(COUNT_FAULTS_OF_CODECS, HOME=os.environ["HOME"])
    faulted = dict(zip(words[::2], words[1::2], strict=True))
    assert len(faulted) > 20
    # Of four megabytes, which would be mapped in each of four steps. A heap that still grows by a
    # piece or two in one of them is none that shrinks.
    assert {name: n for name, n in faulted.items() if int(n) > 2_500_000} == {}
