"""A cluster that is left alone: hosts go in every way that hosts go, and the job comes through.

The supervisor, its ssh, AWS over HTTP and the hosts are real; the job is a shell script, since the
checkpoints of a training have tests of their own.
"""

import os
from pathlib import Path

import pytest
from cluster.virtual.night import Night
from cluster.virtual.vc import Tool

OWN_HOMES = os.geteuid() == 0 and "overlay" in Path("/proc/filesystems").read_text()
WHY_NOT = "NOT TESTED: hosts with home folders of their own take root and overlay file systems"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not OWN_HOMES, reason=WHY_NOT), pytest.mark.long]
# A stand-in for `atomo train`: ends on the same signals, resumes its count, and prints its hosts.
JOB = r"""exec bash -c '
trap "echo left >>steps; exit 130" TERM
while [ ! -e enough ]; do echo "$(wc -l <hosts_address)" >>steps; sleep 0.2; done
' -m atomo train"""


@pytest.fixture
def night(tool: Tool, environment, tmp_path):
    tool.environment |= environment
    made = Night(tool, tmp_path, hosts=7, workers=2)
    yield made
    made.end()


def test_a_job_comes_through_a_night_of_interruptions(night):
    night.launch("--max-usd=10")
    night("bootstrap", "--wait=60")
    night("train", "--max-usd=10", "--autostop=0.05", "--train-commands", JOB)
    night.until(lambda: night.story("started"), "the job")
    lost = []

    def after(count):
        replaced = lambda: len(night.story("joined")) == count and night.whole(lost[-1])  # noqa: E731
        night.until(replaced, f"replacement {count}")
        assert night.story("started") == [f"the job starts on {n} hosts" for n in (3, 2, 3)]

    lost.append(night.lose("noticed"))  # `night.py` goes on in the other ways, for as long as asked
    after(1)
    told = night("status")
    assert not set(lost) & {host["id"] for host in told["hosts"]}
    story = " ".join(one["text"] for one in told["story"] if one["kind"] == "lost")
    assert all(id in story for id in lost)
    night.on(night.master, "touch ~/atomo-for-a-night/enough")
    night.until(lambda: night.story("over"), "the end")
    assert list(night.living().values()) == [night.master]  # which alone has the results
    assert night.story("done") == ["the job is done"]
