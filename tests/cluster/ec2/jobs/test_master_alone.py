"""Commands on jobs reach the master alone: workers without an address do not matter."""

import pytest
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.hosts.ssh import Answer

pytestmark = pytest.mark.long
JOB = "3\trunning\t\t10\t11\t\truns/job-3\t--epochs 2\n"


@pytest.fixture
def hosts(cloud, monkeypatch):
    """Returns a cluster with a job, of which the master alone has a public address."""
    from atomo_cluster.ec2.targets import selection

    asked, address = [], selection.address

    def run(ssh, host, command, stdin=b"", timeout_s=None):
        asked.append(host.role)
        return Answer(host, 0, JOB, "")

    def masters(run, instance):
        assert instance.role == "master", "the address of a worker is asked for"
        return address(run, instance)

    monkeypatch.setattr("atomo_cluster.ec2.hosts.ssh.Ssh.run", run)
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.HostKeys.pin", lambda *_: "key")
    monkeypatch.setattr("atomo_cluster.ec2.jobs.control.relay_output", lambda *_, **__: 0)
    monkeypatch.setattr("atomo_cluster.ec2.targets.selection.address", masters)
    return [start(cloud, role) for role in ("master", "worker", "worker")], asked


def test_jobs_logs_attach_and_stop_need_the_address_of_the_master_alone(ec2, cloud, hosts):
    cloud.calls.clear()
    for words in (["jobs"], ["logs"], ["attach"], ["stop", "3"]):
        done = ec2(*words)
        assert done.code == 0, done.err
    assert "DescribeInstanceTypes" not in cloud.calls
    assert set(hosts[1]) == {"master"}


def test_resize_to_fewer_names_the_job_that_loses_hosts_and_asks(ec2, cloud, hosts):
    done = ec2("resize", "1", answer="n\n")
    assert done.code == 13
    assert "jobs of the cluster: 3 (--epochs 2) is running; a job over all hosts" in done.out
    assert "End them all the same? [y/N]" in done.err
    assert "TerminateInstances" not in cloud.calls


def test_tables_call_the_master_master(ec2, hosts):
    shown = ec2("status").out
    assert "\nmaster " in shown
    assert "deeplearning-worker1" not in shown
    assert "\ndeeplearning-worker2 " in shown
    assert "test, on master" in ec2("jobs").out
