"""A goodbye that takes for ever is cut off, though nothing of Python runs any more."""

import subprocess
import sys

import pytest

from atomo.errors import CUT_OFF
from atomo.transports.farewell import at_most

# PyDLL keeps the interpreter's lock, as MPI_Finalize does.
STUCK = """
import ctypes
from atomo.transports.farewell import at_most
print("results", flush=True)
with at_most(0.05):
    while True:
        ctypes.PyDLL(None).pause()
"""


@pytest.mark.slow
def test_what_waits_for_ever_with_the_interpreters_lock_ends_with_its_exit_code():
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stdout) == (CUT_OFF, "results\n"), done.stderr


def test_what_ends_in_time_is_left_alone():
    with at_most(1000.0):
        pass
