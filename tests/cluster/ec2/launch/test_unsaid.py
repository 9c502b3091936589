"""Messages about costs and unseen things: disks attached by hand, roles that nobody may see, an
owner whom AWS does not name, a limit that a complete cluster exceeds.
"""

import pytest
from cluster.ec2.support.cloud import UBUNTU, everything, refusal

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
NO_STS = refusal("ServiceUnavailable", "try later")
DENIED = refusal("UnauthorizedOperation", "You may not")
DENIED_BY_IAM = refusal("AccessDenied", "not authorized to perform: iam:GetRole")
ZONE = ("--availability-zone", "us-east-1a")


@pytest.fixture
def hosts(ec2, cloud):
    """Returns a cluster that was launched."""
    cloud.prices = PRICES
    done = ec2("launch", "--yes", "--json", *ZONE)
    assert done.code == 0, done.err
    return [host["id"] for host in done.record]


@pytest.fixture
def disk(cloud, hosts):
    """Returns a disk that someone attached to a worker by hand."""
    client = cloud.moto.client()
    id = client.create_volume(AvailabilityZone="us-east-1a", Size=500, VolumeType="gp3")["VolumeId"]
    client.attach_volume(VolumeId=id, InstanceId=hosts[-1], Device="/dev/sdf")
    return id


def test_a_disk_attached_by_hand_is_in_cost(ec2, hosts, disk):
    record = ec2("cost", "--json").record
    rows = {row["id"]: row for row in record["hosts"]}
    assert len(rows) == 4
    assert rows[disk]["state"] == f"attached by hand to {hosts[-1]}"
    assert rows[disk]["usd_per_hour"] == pytest.approx(500 * 0.08 / 730)
    assert record["usd_per_hour"] == pytest.approx(
        3 * (0.096 + 0.005) + (500 + 300) * 0.08 / 730, rel=1e-3
    )
    assert disk in ec2("cost").out


def test_a_disk_attached_by_hand_is_named_before_and_after_the_end(ec2, cloud, hosts, disk):
    declined = ec2("shutdown", answer="no\n")
    assert declined.code == 13
    line = f"volume {disk} (500 GB gp3), attached by hand to {hosts[-1]}"
    assert f"{line}: stays, and costs" in declined.out
    done = ec2("shutdown", "--yes", "--json")
    assert done.code == 14
    assert "the hosts have ended; left alone, and costing: " + line in done.err
    assert f"`aws ec2 delete-volume --region us-east-1 --volume-id {disk}` deletes it" in done.err
    assert [one["id"] for one in done.record["foreign"]] == [disk]
    assert not everything(cloud)["instances"]
    assert everything(cloud)["volumes"] == {disk}


def test_a_disk_attached_by_hand_is_named_and_counted_until_it_is_gone(ec2, cloud, hosts, disk):
    assert ec2("shutdown", "--yes").code == 14
    for _ in range(2):
        again = ec2("shutdown", "--yes")
        assert again.code == 14
        assert f"volume {disk} (500 GB gp3), attached by hand to {hosts[-1]}" in again.err
    rows = {row["id"]: row for row in ec2("cost", "--json").record["hosts"]}
    assert rows[disk]["usd_per_hour"] == pytest.approx(500 * 0.08 / 730)
    cloud.moto.client().delete_volume(VolumeId=disk)
    assert ec2("shutdown", "--yes").code == 0
    assert disk not in ec2("cost").out


def test_a_disk_that_somebody_keeps_is_forgotten_by_its_id(ec2, cloud, hosts, disk):
    assert ec2("shutdown", "--yes").code == 14
    assert ec2("shutdown", "--forget", disk, "--yes").code == 0
    assert ec2("shutdown", "--yes").code == 0
    assert everything(cloud)["volumes"] == {disk}


def test_a_disk_that_another_host_has_by_now_is_no_longer_named(ec2, cloud, hosts, disk):
    assert ec2("shutdown", "--yes").code == 14
    client = cloud.moto.client()
    others = client.run_instances(ImageId=UBUNTU, MinCount=1, MaxCount=1)["Instances"]
    client.attach_volume(VolumeId=disk, InstanceId=others[0]["InstanceId"], Device="/dev/sdf")
    assert ec2("shutdown", "--yes").code == 0


@pytest.fixture
def address(cloud, hosts):
    """Returns a public address that someone gave to a worker by hand."""
    client = cloud.moto.client()
    allocated = client.allocate_address(Domain="vpc")
    client.associate_address(AllocationId=allocated["AllocationId"], InstanceId=hosts[-1])
    return allocated


def test_an_address_attached_by_hand_is_counted_and_named_until_it_is_released(
    ec2, cloud, hosts, address
):
    id = address["AllocationId"]
    record = ec2("cost", "--json").record
    rows = {row["id"]: row for row in record["hosts"]}
    assert rows[id]["state"] == f"attached by hand to {hosts[-1]}"
    assert rows[id]["usd_per_hour"] == 0.0  # its host has it
    assert record["usd_per_hour"] == pytest.approx(3 * (0.096 + 0.005) + 300 * 0.08 / 730, rel=1e-3)
    line = f"address {id} ({address['PublicIp']}), attached by hand to {hosts[-1]}"
    assert f"{line}: stays, and costs" in ec2("shutdown", answer="no\n").out
    for _ in range(2):
        done = ec2("shutdown", "--yes")
        assert done.code == 14
        assert f"left alone, and costing: {line}" in done.err
        assert f"`aws ec2 release-address --region us-east-1 --allocation-id {id}`" in done.err
    rows = {row["id"]: row for row in ec2("cost", "--json").record["hosts"]}
    assert rows[id]["usd_per_hour"] == 0.005
    cloud.moto.client().release_address(AllocationId=id)
    assert ec2("shutdown", "--yes").code == 0
    assert id not in ec2("cost").out


def test_addresses_that_aws_does_not_tell_of_are_said(ec2, cloud, hosts):
    cloud.on("DescribeAddresses", DENIED, times=99)
    done = ec2("cost")
    assert done.code == 0
    assert "not in it: AWS does not say whether addresses are attached by hand" in done.out
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert "AWS does not say whether addresses are attached by hand" in done.err
    assert not everything(cloud)["instances"]


def test_a_disk_that_aws_does_not_tell_of_keeps_no_host_alive(ec2, cloud, hosts, disk):
    """AWS lists the tagged disks, and fails for those of the hosts."""
    refuse_by_host(cloud)
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert not everything(cloud)["instances"]
    assert "AWS does not say whether disks are attached by hand" in done.err


def refuse_by_host(cloud):
    def act(words, forward):
        return DENIED if "attachment.instance-id" in words.values() else None

    cloud.on("DescribeVolumes", act, times=99)


@pytest.mark.parametrize("call", ["GetInstanceProfile", "GetRole"])
def test_roles_that_nobody_may_look_at_are_not_verified(ec2, cloud, hosts, call):
    cloud.on(call, DENIED_BY_IAM, times=99)
    done = ec2("shutdown", "--yes", "--json")
    assert done.code == 0, done.err
    assert "verified" not in done.err
    assert "NOT LOOKED AT: roles and instance profiles in IAM" in done.err
    assert f"iam.{'get_role' if call == 'GetRole' else 'get_instance_profile'}" in done.err
    assert len(done.record["unseen"]) == 1
    assert not everything(cloud)["instances"]


def test_a_cluster_ends_while_sts_does_not_answer(ec2, cloud, hosts):
    cloud.on("GetCallerIdentity", NO_STS, times=999)
    for verb in ("status", "cost"):
        done = ec2(verb)
        assert done.code == 0, done.err
        assert "as in the ledger: owner user/moto" in done.out
        assert all(host in done.out for host in hosts)
    done = ec2("shutdown", "--yes")
    assert done.code == 0, done.err
    assert not everything(cloud)["instances"]


def test_without_sts_and_ledger_the_owner_is_asked_for(ec2, cloud, hosts, folder):
    (folder / "state/test/hosts.json").unlink()
    cloud.on("GetCallerIdentity", NO_STS, times=999)
    done = ec2("shutdown", "--yes")
    assert done.code == 10
    assert "--owner, with the value of the tag atomo:owner of the hosts" in done.err
    assert ec2("shutdown", "--yes", "--owner", "user/moto").code == 0
    assert not everything(cloud)["instances"]


def test_nothing_is_launched_while_sts_does_not_answer(ec2, cloud, hosts):
    cloud.moto.client().terminate_instances(InstanceIds=hosts[-1:])
    cloud.on("GetCallerIdentity", NO_STS, times=999)
    assert ec2("launch", "--yes", *ZONE).code == 12
    assert len(everything(cloud)["instances"]) == 2


def test_nothing_is_launched_for_the_owner_of_an_older_ledger(ec2, cloud, folder, hosts):
    """STS fails once: the ledger is of somebody else who used this machine."""
    ledger = folder / "state/test/hosts.json"
    ledger.write_text(ledger.read_text().replace("user/moto", "user/ana"))
    before = everything(cloud)
    cloud.on("GetCallerIdentity", refusal("UnauthorizedOperation"))
    done = ec2("launch", "--yes", "--n-workers", "3", *ZONE)
    assert done.code == 12
    assert "AWS knows you as 'user/moto'" in done.err
    assert everything(cloud) == before


def test_a_limit_below_the_bound_of_a_complete_cluster_is_said(ec2, cloud, hosts):
    done = ec2("launch", "--yes", "--max-usd", "1", *ZONE)
    assert done.code == 0, done.err
    assert "MAX_USD DOES NOT HOLD: the cluster may cost $2.7" in done.out
    assert "and max_usd is $1.00; the hosts run on" in done.out
    assert "MAX_USD" not in ec2("launch", "--yes", "--max-usd", "9", *ZONE).out
