"""Security groups and networks of a cluster; none of them outlives the hosts."""

import stat
import subprocess

import pytest
from cluster.ec2.support.cloud import everything

pytestmark = pytest.mark.long


@pytest.fixture
def groups(cloud):
    """Looks at the cluster's security groups."""

    def look():
        found = cloud.moto.client().describe_security_groups()["SecurityGroups"]
        return [group for group in found if group["GroupName"].startswith("atomo-")]

    return look


def ssh_sources(group):
    return [
        source["CidrIp"]
        for rule in group["IpPermissions"]
        if rule.get("FromPort") == 22
        for source in rule["IpRanges"]
    ]


def all_sources(group):
    return [r["CidrIp"] for rule in group["IpPermissions"] for r in rule["IpRanges"]]


def launch(ec2, *words):
    done = ec2("launch", "--yes", "--json", *words)
    assert done.code == 0, done.err
    return done


def test_ssh_from_one_place_and_everything_inside(ec2, cloud, groups):
    launch(ec2)
    (group,) = groups()
    assert ssh_sources(group) == all_sources(group) == ["203.0.113.7/32"]
    inside = [rule for rule in group["IpPermissions"] if rule["IpProtocol"] == "-1"]
    assert [pair["GroupId"] for rule in inside for pair in rule["UserIdGroupPairs"]] == [
        group["GroupId"]
    ]
    for batch in cloud.moto.client().describe_instances()["Reservations"]:
        for one in batch["Instances"]:
            assert [g["GroupId"] for g in one["SecurityGroups"]] == [group["GroupId"]]


def test_another_address_replaces_the_old_one(ec2, groups):
    launch(ec2)
    launch(ec2, "--ssh-from", "198.51.100.2/32")
    (group,) = groups()
    assert all_sources(group) == ["198.51.100.2/32"]


def test_the_address_is_asked_for(ec2, cloud, groups):
    launch(ec2, "--ssh-from", "", "--check-ip-url", f"{cloud.url}/my-address")
    (group,) = groups()
    assert all_sources(group) == ["203.0.113.9/32"]


def test_an_address_that_nobody_tells_must_be_given(ec2, cloud):
    before = everything(cloud)
    words = ("--ssh-from", "", "--check-ip-url", "http://127.0.0.1:9/")
    done = ec2("launch", "--yes", *words)
    assert done.code == 2
    assert "give it as --ssh-from, e.g. --ssh-from 203.0.113.7/32" in done.err
    assert everything(cloud) == before


def test_the_whole_internet_must_be_asked_for_by_name(ec2, groups):
    refused = ec2("launch", "--yes", "--ssh-from", "0.0.0.0/0")
    assert refused.code == 2
    assert "would let 4,294,967,296 addresses try ssh" in refused.err
    assert not groups()
    launch(ec2, "--ssh-from", "", "--ssh-from-anywhere", "yes")
    (group,) = groups()
    assert all_sources(group) == ["0.0.0.0/0"]
    assert "THE WHOLE INTERNET MAY TRY" in ec2("validate", "--ssh-from", "",
                                               "--ssh-from-anywhere", "yes").out  # fmt: skip


def test_placement_group_and_efa(ec2, cloud, groups):
    before = everything(cloud)
    type = "c5n.18xlarge"
    words = ("--placement-group", "yes", "--efa", "yes", "--master-type", type)
    seen = []
    cloud.on("RunInstances", lambda words, forward: seen.append(words), times=2)
    launch(ec2, *words, "--worker-type", type)
    (group,) = groups()
    outside = [rule for rule in group["IpPermissionsEgress"] if rule["UserIdGroupPairs"]]
    assert outside  # EFA wants it said
    (name,) = cloud.placement_groups
    for call in seen:
        assert call["Placement.GroupName"] == name
        assert call["NetworkInterface.1.InterfaceType"] == "efa"
        assert call["NetworkInterface.1.SecurityGroupId.1"] == group["GroupId"]
    assert ec2("shutdown", "--yes").code == 0
    assert everything(cloud) == before


def test_a_key_is_made_here_and_its_public_half_alone_leaves(ec2, cloud, folder):
    launch(ec2)
    path = folder / "state" / "test" / "id_ed25519"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (pair,) = cloud.moto.client().describe_key_pairs(IncludePublicKey=True)["KeyPairs"]
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True
    )
    assert pair["PublicKey"].split()[1] == public.stdout.split()[1]
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["keys"]


@pytest.fixture
def own_key(cloud, tmp_path):
    """Returns a key pair of the user's: its options."""
    made = cloud.moto.client().create_key_pair(KeyName="mine", KeyType="rsa")
    path = tmp_path / "mine.pem"
    path.write_text(made["KeyMaterial"])
    path.chmod(0o600)
    return ("--key-name", "mine", "--path-to-keyfile", str(path))


def test_the_users_own_key_pair_is_used_and_kept(ec2, cloud, own_key):
    done = launch(ec2, *own_key)
    client = cloud.moto.client()
    for host in done.record:
        (batch,) = client.describe_instances(InstanceIds=[host["id"]])["Reservations"]
        assert batch["Instances"][0]["KeyName"] == "mine"
    assert everything(cloud)["keys"] == {"mine"}
    assert ec2("shutdown", "--yes").code == 0
    assert everything(cloud)["keys"] == {"mine"}


def permit(cloud, group, **rule):
    """Adds a rule by hand."""
    cloud.moto.client().authorize_security_group_ingress(
        GroupId=group["GroupId"], IpPermissions=[{"IpProtocol": "tcp", **rule}]
    )


def test_rules_made_by_hand_are_seen_and_those_of_ssh_are_removed(ec2, cloud, groups):
    launch(ec2)
    (group,) = groups()
    permit(cloud, group, FromPort=22, ToPort=22, Ipv6Ranges=[{"CidrIpv6": "::/0"}])
    permit(cloud, group, FromPort=8080, ToPort=8081, IpRanges=[{"CidrIp": "198.51.100.9/32"}])
    permit(cloud, group, FromPort=443, ToPort=443, Ipv6Ranges=[{"CidrIpv6": "2001:db8::/32"}])
    said = ec2("validate", "--json").out
    assert "also ::/0 to tcp 22, which `launch` removes" in said
    assert "also 2001:db8::/32 to tcp 443, made by hand" in said
    done = ec2("launch", "--yes")
    assert done.code == 0, done.err
    (after,) = groups()
    assert all_sources(after) == ["203.0.113.7/32", "198.51.100.9/32"]
    ranges = [one["CidrIpv6"] for rule in after["IpPermissions"] for one in rule["Ipv6Ranges"]]
    assert ranges == ["2001:db8::/32"]  # and no longer ::/0
    assert (
        f"security group {group['GroupId']} also lets in, by rules made by hand that stay: "
        "198.51.100.9/32 to tcp 8080-8081, 2001:db8::/32 to tcp 443" in done.out
    )
