"""The owner of a cluster: the same in every process, and never a reason to report that no cluster
runs.
"""

import pytest
from cluster.ec2.support.cloud import Reply, everything

pytestmark = pytest.mark.long

ROLE = "arn:aws:sts::123456789012:assumed-role/Trainer/botocore-session-{}"


def identity(arn):
    """AWS's answer to who is calling."""
    space = "https://sts.amazonaws.com/doc/2011-06-15/"
    inner = f"<Arn>{arn}</Arn><UserId>U</UserId><Account>123456789012</Account>"
    result = f"<GetCallerIdentityResult>{inner}</GetCallerIdentityResult>"
    name = "GetCallerIdentityResponse"
    return Reply(200, f'<{name} xmlns="{space}">{result}</{name}>'.encode())


@pytest.fixture
def role(cloud):
    """Gives each call of a command another session of one role, as botocore does."""
    sessions = iter(range(1000))
    cloud.on("GetCallerIdentity", lambda *_: identity(ROLE.format(next(sessions))), times=1000)


def test_an_assumed_role_owns_its_cluster_in_every_session(ec2, cloud, role):
    first = ec2("launch", "--yes", "--json")
    assert first.code == 0, first.err
    assert {host["owner"] for host in first.record} == {"assumed-role/Trainer"}
    assert len(ec2("status", "--json").record["hosts"]) == 3
    again = ec2("launch", "--yes", "--json")
    assert [host["id"] for host in again.record] == [host["id"] for host in first.record]
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["instances"]


def test_hosts_of_this_name_are_never_passed_over(ec2, cloud):
    assert ec2("launch", "--yes", "--owner", "assumed-role/Trainer/old-session").code == 0
    before = everything(cloud)
    whose = "hosts of a cluster called test live that are not of 'user/moto': 3 of 'assumed-role/"
    status = ec2("status", "--json")
    assert (status.code, status.record["hosts"]) == (14, [])
    assert whose in status.err
    assert "see them with --owner assumed-role/Trainer/old-session" in status.err
    ended = ec2("shutdown", "--yes")
    assert ended.code == 14
    assert whose in ended.err
    doubled = ec2("launch", "--yes")
    assert doubled.code == 12
    assert whose in doubled.err
    assert "If it is yours, say --owner assumed-role/Trainer/old-session" in doubled.err
    assert everything(cloud) == before
    assert ec2("shutdown", "--yes", "--owner", "assumed-role/Trainer/old-session").code == 0
