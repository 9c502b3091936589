"""Jobs on the master: one at a time, listed, followed, queued and stopped, over a real sshd."""

import signal
import subprocess

import pytest
from cluster.ec2.support.sshd import why_not

from atomo_cluster.ec2.cli import interrupt
from atomo_cluster.ec2.jobs import control
from atomo_cluster.ec2.jobs.job import SCRIPT

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"NOT TESTED: {why_not()}"),
    pytest.mark.slow,
]

WAITS = "#!/bin/bash\nmkfifo wait && cat wait\necho done\n"
# A stand-in for `python -m atomo train`: the same name, the same reaction to a signal.
LAUNCHER = """#!/bin/bash
trap 'echo checkpoint; kill $!; exit 130' TERM
sleep 600 &
touch ready
wait
"""
RUNS = """#!/bin/bash
exec -a 'python -m atomo train' bash launcher
"""


@pytest.fixture
def checkout(lab):
    """Returns the checkout on the master."""
    lab.show_keys()
    folder = lab.hosts[0].home / "atomo"
    folder.mkdir()
    yield folder
    lab("stop", "last", "--wait", "60")


def program(checkout, text):
    (checkout / "run_pytorch.sh").write_text(text)


def states(lab):
    return [(job["number"], job["state"]) for job in lab("jobs", "--json").record]


def said(done):
    """Returns the output of a job without its first line, which names its folder."""
    first, _, text = done.out.partition("\n")
    assert " trains in runs/job-" in first
    return text


def goes(lab, checkout):
    """Waits until the job of `WAITS` waits, and lets it go on."""
    ready = "until [ -p atomo/wait ]; do :; done; echo go >atomo/wait; rm atomo/wait"
    assert lab("run_command", "master", ready).code == 0


def test_a_detached_job_outlives_the_connection_and_is_followed(lab, checkout):
    program(checkout, WAITS)
    assert "no job has run yet" in lab("jobs").out
    assert lab("logs").code == 2
    done = lab("train", "--detach", "--json", "--", "--epochs", "2")
    assert done.code == 0, done.err
    assert '--hostfile "$ATOMO_JOB_HOSTS"' in done.record["command"]
    assert done.record["folder"].startswith("runs/job-1-")
    shown = lab("jobs").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "running" in shown
    assert "--epochs 2" in shown
    goes(lab, checkout)
    followed = lab("logs", "--follow")
    assert (followed.code, said(followed)) == (0, "go\ndone\n")
    assert lab("logs", "1", "--lines", "1").out == "done\n"
    assert (checkout / "train.log").read_text().endswith("\ngo\ndone\n")
    assert states(lab) == [(1, "done")]


def test_attach_ends_with_the_code_of_the_job(lab, checkout):
    program(checkout, "#!/bin/bash\necho said\nexit 6\n")
    assert lab("train").code == 6
    attached = lab("attach")
    assert (attached.code, said(attached)) == (6, "said\n")
    assert lab("logs", "--follow").code == 0
    (job,) = lab("jobs", "--json").record
    assert (job["state"], job["code"]) == ("failed", 6)
    for words in (("attach", "7"), ("logs", "7"), ("stop", "7")):
        assert "no job 7" in lab(*words).err
    assert "JOB is a number" in lab("attach", "seven").err


@pytest.mark.long
def test_a_second_job_is_refused_or_waits_its_turn(lab, checkout):
    program(checkout, WAITS)
    assert lab("train", "--detach", "--", "--code", "qsgd").code == 0
    for words in (["--detach"], [], ["--pre-commands", "touch never"]):
        again = lab("train", *words)
        assert again.code == 12
        assert "job 1 (--code qsgd) runs already on master, and this" in again.err
    assert not (checkout / "never").exists()
    for _ in range(2):
        assert lab("train", "--detach", "--queue").code == 0
    assert states(lab) == [(1, "running"), (2, "queued"), (3, "queued")]
    assert lab("stop", "2").code == 0
    goes(lab, checkout)
    goes(lab, checkout)
    assert said(lab("attach", "3")) == "go\ndone\n"
    assert states(lab) == [(1, "done"), (2, "stopped"), (3, "done")]


def launched(lab, checkout):
    """Starts a stand-in for a launcher, and waits until it can be signalled."""
    program(checkout, RUNS)
    (checkout / "launcher").write_text(LAUNCHER)
    assert lab("train", "--detach").code == 0
    assert lab("run_command", "master", "until [ -e atomo/ready ]; do :; done").code == 0


def test_a_job_writes_a_checkpoint_before_it_stops(lab, checkout):
    launched(lab, checkout)
    done = lab("stop", "1")
    assert (done.code, done.out) == (0, "job 1 has ended\n"), done.err
    assert said(lab("logs")) == "checkpoint\n"
    assert states(lab) == [(1, "stopped")]
    assert "job 1 has ended already" in lab("stop", "1").out


def test_ctrl_c_stops_the_job_and_a_closed_terminal_does_not(lab, checkout, monkeypatch):
    launched(lab, checkout)
    called = control.relay_output

    def broken_off(number):
        def follow(words, as_json):
            if "follow" in words[-1].split()[-3]:
                monkeypatch.setattr(control, "relay_output", called)
                interrupt(number, None)
            return called(words, as_json=as_json)

        monkeypatch.setattr(control, "relay_output", follow)
        monkeypatch.setattr(
            "atomo_cluster.ec2.commands.jobs.train.start_job", lambda *_, **__: ("1", "", "")
        )
        return lab("train")

    assert broken_off(signal.SIGHUP).code == 130
    assert states(lab) == [(1, "running")]
    done = broken_off(signal.SIGINT)
    assert done.code == 130
    assert "job 1 is to write a checkpoint and end" in done.out
    assert done.out.endswith("checkpoint\n")
    assert states(lab) == [(1, "stopped")]


def test_a_job_that_ends_without_a_word_is_lost_and_not_for_ever_running(lab, checkout):
    launched(lab, checkout)
    kill = 'kill -KILL -- "-$(cat atomo/jobs/1/pid)"'
    assert lab("run_command", "master", kill).code == 0
    done = lab("attach")
    assert done.code == 11
    assert "job last ended without a word: killed by force, or with its host" in done.err
    assert states(lab) == [(1, "lost")]
    program(checkout, "#!/bin/bash\necho next\n")
    assert said(lab("train")) == "next\n"


def test_a_disk_that_takes_no_job_is_told_at_once(tmp_path):
    (tmp_path / "jobs").write_text("")
    words = ["bash", "-c", SCRIPT.read_text(), "job", "start", "no", "shown"]
    done = subprocess.run(words, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.returncode == 1
    assert b"jobs" in done.stderr
