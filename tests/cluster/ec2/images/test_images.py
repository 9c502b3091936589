"""Images with the environment in them: made of hosts, found by launches, shown, deleted."""

import pytest
from cluster.ec2.support.cloud import create_image, everything, refusal
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.aws.client import DENIED
from atomo_cluster.ec2.aws.tags import IMAGE
from atomo_cluster.ec2.hosts.ssh import Answer
from atomo_cluster.ec2.images.baked import named_in

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005, "snapshot": 0.05}


@pytest.fixture
def commands(monkeypatch):
    """Returns the commands sent to hosts over ssh; all succeed."""
    made = []

    def run(ssh, host, command, stdin=b"", timeout_s=None):
        made.append((host.role, command, stdin.decode()))
        return Answer(host, 0, "", "")

    monkeypatch.setattr("atomo_cluster.ec2.hosts.ssh.Ssh.run", run)
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.HostKeys.pin", lambda *_: "key")
    return made


def ours(cloud):
    """Returns the images and snapshots that carry the tag."""
    client, filters = cloud.moto.client(), [{"Name": "tag-key", "Values": [IMAGE]}]
    images = client.describe_images(Owners=["self"], Filters=filters)["Images"]
    found = client.describe_snapshots(OwnerIds=["self"], Filters=filters)["Snapshots"]
    return [one["ImageId"] for one in images], [one["SnapshotId"] for one in found]


@pytest.mark.long
def test_an_image_is_baked_used_shown_and_deleted(ec2, cloud, commands):
    cloud.prices = PRICES
    missing = ec2("plan", "--image-id", "baked")
    assert missing.code == 2
    assert "test has no image in us-east-1 for m5.large (x86_64)" in missing.err
    start(cloud, "master"), start(cloud, "worker")
    done = ec2("bake", "--yes")
    assert done.code == 0, done.err
    assert "an image costs at most $5.00 a month" in done.out
    assert [role for role, command, _ in commands if "-- atomo" in command] == ["worker"]
    (image,), (snapshot,) = ours(cloud)
    assert f"image {image} available, 15 GB, x86_64, no GPUs" in ec2("status").out
    (row,) = [one for one in ec2("cost", "--json").record["hosts"] if one["state"] == "image"]
    assert (row["id"], row["type"]) == (snapshot, f"15 GB, {image}")
    assert row["usd_per_hour"] == pytest.approx(15 * 0.05 / 730)
    ended = ec2("shutdown", "--yes")
    assert ended.code == 0
    assert f"baked images stay, and cost: {image}" in ended.out
    plan = ec2("plan", "--image-id", "baked", "--json").record
    assert {group["image"] for group in plan["launch"]} == {image}
    assert ec2("delete_images", "ami-0", "--yes").code == 2
    assert ec2("delete_images", "--yes").code == 0
    assert ours(cloud) == ([], [])
    assert everything(cloud)["instances"] == set()


@pytest.mark.long
def test_faults_leave_no_image_that_nobody_was_told_of(ec2, cloud, commands):
    start(cloud, "master")

    def lost(words, forward):
        create_image(cloud, words, b"", forward)
        return refusal("IncompleteSignature")

    cloud.on("CreateImage", lost)
    assert ec2("bake", "--yes").code == 0
    cloud.on("CreateImage", refusal("UnauthorizedOperation", "You may not"))
    refused = ec2("bake", "--yes")
    assert refused.code == 10
    assert len(ours(cloud)[0]) == 1
    cloud.on("DeregisterImage", refusal("UnauthorizedOperation", "You may not"))
    left = ec2("delete_images", "--yes")
    assert left.code == 14
    assert ours(cloud)[0][0] in left.err
    cloud.on("DeleteSnapshot", refusal("UnauthorizedOperation", "You may not"))
    left = ec2("delete_images", "--yes")
    assert left.code == 14
    (snapshot,) = ours(cloud)[1]
    assert snapshot in left.err
    again = ec2("delete_images", "--yes")
    assert again.code == 0
    assert f"{snapshot}, 15 GB, of an image that is gone" in again.out
    assert ours(cloud) == ([], [])


def test_an_image_is_named_where_that_of_the_next_host_fails(ec2, cloud, commands):
    start(cloud, "master"), start(cloud, "worker", type="g4dn.xlarge")
    cloud.on("CreateImage", lambda *_: None)
    cloud.on("CreateImage", refusal("UnauthorizedOperation", "You may not"))
    done = ec2("bake", "--yes")
    (image,), _ = ours(cloud)
    assert done.code == 14
    assert f"ec2.create_image: UnauthorizedOperation: You may not; {DENIED}; `boots" in done.err
    assert f"{image} may still come, and cost: `delete_images` deletes" in done.err
    assert f"making {image} of i-" in done.out


def test_where_aws_does_not_say_whether_there_is_an_image_that_is_said(ec2, cloud, commands):
    start(cloud, "master")
    cloud.on("CreateImage", refusal("IncompleteSignature"))
    cloud.on("DescribeImages", lambda *_: None)
    cloud.on("DescribeImages", refusal("UnauthorizedOperation"))
    done = ec2("bake", "--yes")
    assert done.code == 14
    assert "AWS does not say whether there is an image atomo-test-" in done.err
    assert "`bootstrap` makes hosts" in done.err


def test_a_snapshot_names_its_image():
    assert named_in({"Description": "Created by CreateImage(i-1) for ami-2"}) == "ami-2"
    assert named_in({"Description": "Created by CreateImage(i-1) for ami-2 from vol-3"}) == "ami-2"
    assert named_in({}) == ""
