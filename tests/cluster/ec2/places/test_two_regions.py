"""Two clusters of one name in two regions: neither takes anything from the other."""

import json

import pytest
from cluster.ec2.support.cloud import write_cluster

from atomo_cluster.ec2.aws.tags import ClusterTags

pytestmark = pytest.mark.long

EAST, WEST = ("--region", "us-east-1"), ("--region", "us-west-2")


def roles(cloud):
    """Returns the names of roles and of instance profiles."""
    iam = cloud.moto.client("iam")
    profiles = iam.list_instance_profiles()["InstanceProfiles"]
    return ({role["RoleName"] for role in iam.list_roles()["Roles"]},
            {profile["InstanceProfileName"] for profile in profiles})  # fmt: skip


def regions_of(cloud, role):
    """Returns the regions in which the policy of a role holds."""
    policy = cloud.moto.client("iam").get_role_policy(RoleName=role, PolicyName="atomo")
    text = json.dumps(policy["PolicyDocument"])
    return {region for region in ("us-east-1", "us-west-2") if f'"{region}"' in text}


def test_the_end_of_one_leaves_the_others_rights(ec2, cloud, folder):
    write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), supervise=True,
                  permissions_boundary="none", n_workers=1)  # fmt: skip
    for region in (EAST, WEST):
        done = ec2("launch", "--yes", *region)
        assert done.code == 0, done.err
    owned = ClusterTags("test", "user/moto")
    east, west = owned.role_name("us-east-1"), owned.role_name("us-west-2")
    ends = {region: owned.end_role_name(region) for region in ("us-east-1", "us-west-2")}
    assert roles(cloud) == ({east, west, *ends.values()}, {east, west})
    assert east.endswith("-us-east-1")
    assert regions_of(cloud, east) == {"us-east-1"}
    assert regions_of(cloud, west) == {"us-west-2"}
    assert {region: regions_of(cloud, role) for region, role in ends.items()} == {
        region: {region} for region in ends
    }
    assert ec2("shutdown", "--yes", *WEST).code == 0
    assert roles(cloud) == ({east, ends["us-east-1"]}, {east})
    assert regions_of(cloud, east) == {"us-east-1"}
    assert ec2("shutdown", "--yes", *EAST).code == 0
    assert roles(cloud) == (set(), set())


def test_a_role_of_an_earlier_version_goes_with_its_cluster(ec2, cloud, folder, monkeypatch):
    write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), supervise=True,
                  permissions_boundary="none", n_workers=1)  # fmt: skip
    with monkeypatch.context() as before:
        before.setattr(ClusterTags, "role_name", lambda owned, region: owned.label)
        assert ec2("launch", "--yes", "--aws-end", "no").code == 0  # as that version did
    label = ClusterTags("test", "user/moto").label
    assert roles(cloud) == ({label}, {label})
    assert ec2("shutdown", "--yes").code == 0
    assert roles(cloud) == (set(), set())


@pytest.mark.parametrize("length", [1, 28, 40])
def test_names_of_roles_fit_and_differ_between_regions(length):
    owned = ClusterTags("n" * length, "user/moto")
    regions = ("us-east-1", "ap-southeast-2", "us-gov-west-1")
    names = {name for region in regions for name in owned.role_names(region)}
    assert max(map(len, names)) <= 64
    assert len(names) == 2 * len(regions) + 2  # those of an earlier version are the same
