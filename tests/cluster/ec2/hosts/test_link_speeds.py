"""The speed of links under MPI: how it is reported and shown."""

import json

import pytest

from atomo_cluster.ec2.hosts.host_keys import HostKeys
from atomo_cluster.ec2.hosts.link_speeds import LinkMeasurement
from atomo_cluster.ec2.hosts.setup import SetupContext
from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh
from atomo_cluster.ec2.settings.cluster import Cluster

HOSTS = [Host(f"i-{n}", f"deeplearning-worker{n + 1}", role, "a", "b")
         for n, role in enumerate(("master", "worker", "worker"))]  # fmt: skip


def printed(*kernel):
    rows = [{"rank": rank, "us": 25.0, "gbit_s": 9.4, "kernel": part}
            for rank, part in enumerate(kernel, 1)]  # fmt: skip
    return "a warning of MPI\n" + "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Returns a function that shows the speeds for an output of the master."""

    def show(told, code=0, efa=False):
        asked = []

        def run(ssh, host, command, stdin=b"", timeout_s=None):
            asked.append((host, command.rpartition("remote_script.sh ")[2]))
            return Answer(host, code, told, "")

        monkeypatch.setattr("atomo_cluster.ec2.hosts.ssh.Ssh.run", run)
        ssh = Ssh("me", None, tmp_path / "known_hosts")
        keys = HostKeys(ssh, lambda host: set())
        found = LinkMeasurement()
        site = SetupContext(Cluster(), ssh, keys, tuple(HOSTS), b"", fused=False, wait_s=0.0)
        found.take(site, HOSTS[0], "10.0.0.0/16")
        assert asked == [(HOSTS[0], "links 10.0.0.0/16")]
        return found.lines(HOSTS, efa)

    return show


def test_links_are_shown_with_the_way_that_mpi_takes(shown):
    lines = shown(printed(1.0, 0.01), efa=True)
    assert lines[0] == "MPI from master to"
    assert lines[1] == "deeplearning-worker2      9.40 Gbit/s      25 us  TCP"
    assert lines[2].endswith("past the kernel, as EFA does")
    assert "efa: yes, and MPI does not use it" in lines[3]
    assert len(shown(printed(1.0, 1.0))) == 3
    assert len(shown(printed(0.0, 0.0), efa=True)) == 3


def test_links_that_cannot_be_measured_say_why(shown):
    (told,) = shown("no mpirun", code=2)
    assert told.startswith("links were not measured: master (a): links: ")
    assert told.endswith("no mpirun")
    assert shown(printed(1.0)) == ["links were not measured: 1 of 2 links were measured"]
    assert "not a link" in shown('{"rank": 9}\n')[0]
