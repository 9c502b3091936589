"""An exit that blocks with the interpreter's lock held is cut off by the alarm."""

import subprocess
import sys

import pytest

from atomo.errors import CUT_OFF
from atomo.transports.exit_alarm import exit_after

# PyDLL keeps the interpreter's lock, as MPI_Finalize does.
STUCK = """
import ctypes
from atomo.transports.exit_alarm import exit_after
print("results", flush=True)
with exit_after(0.05):
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
    with exit_after(1000.0):
        pass
