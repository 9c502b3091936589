"""The supervised job as a job of this machine: its host files, its options, and how it ends."""

import time
from datetime import datetime, timezone

import pytest

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.supervisor.supervised_job import SupervisedJob

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
# A stand-in for `atomo train`: ends on the same signals, and prints its hosts.
JOB = r"""exec bash -c '
trap "exit 130" TERM
cat hosts_address >seen.new; mv seen.new seen
while :; do sleep 0.05; done
' -m atomo train"""


def host(number):
    role = "worker" if number else "master"
    return Instance(f"i-{number}", role, "m5.large", "running", "us-east-1a", None,
                    f"10.0.0.{number}", START, False, "c", "ana", "", 8.0, "s")  # fmt: skip


@pytest.fixture
def home(tmp_path):
    (tmp_path / "atomo").mkdir()
    return tmp_path


def seen(home):
    """Waits for the job, and returns the hosts that it has."""
    path, end = home / "atomo" / "seen", time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, (home / "atomo/jobs/1/log").read_text()
        time.sleep(0.02)
    text = path.read_text()
    path.unlink()
    return text.split()


def test_the_job_starts_on_the_hosts_that_are_ready_and_continues_on_others(home):
    job = SupervisedJob(Cluster(train_commands=(JOB,), n_workers=2), [], home)
    assert (job.running, job.code, job.hosts, job.needed) == (False, None, (), 2)
    job.start([host(0), host(1), host(2)], "")
    assert seen(home) == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    again = SupervisedJob(Cluster(train_commands=(JOB,)), [], home)
    assert again.running  # a supervisor that is started anew adopts it
    assert again.hosts == ("i-0", "i-1", "i-2")
    job.stop()
    assert (job.running, job.code, job.withdrawn) == (False, 130, True)
    job.forget()
    assert (job.code, job.withdrawn) == (None, False)
    job.start([host(0), host(7)], "")
    assert seen(home) == ["10.0.0.0", "10.0.0.7"]
    assert job.hosts == ("i-0", "i-7")
    job.stop()


def test_options_of_the_job_fit_the_hosts_that_are_left(home):
    (home / "atomo" / "run_pytorch.sh").write_text('echo "$@" >seen.new; mv seen.new seen\n')
    words = ("--num-aggregate", "3", "--min-workers=2")
    job = SupervisedJob(Cluster(n_workers=4), words, home)
    assert job.needed == 3
    job.start([host(0), host(1), host(3)], "")
    options = seen(home)
    assert options[options.index("--n") + 1] == "3"
    assert options[-1] == "--num-aggregate=2"
    file = home / options[options.index("--hostfile") + 1]
    listed = [line.split()[0] for line in file.read_text().splitlines()]
    assert listed == ["10.0.0.0", "10.0.0.1", "10.0.0.3"]
    job.stop()
