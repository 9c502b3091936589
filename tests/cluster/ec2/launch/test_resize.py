"""`resize` launches what is missing and ends the surplus, and nothing else."""

import pytest
from cluster.ec2.support.cloud import everything, refusal

from atomo_cluster.ec2.aws.tags import CLUSTER

pytestmark = pytest.mark.long


@pytest.mark.long
def test_a_cluster_becomes_larger_and_smaller(ec2, cloud):
    assert ec2("resize", "3", "--yes").code == 10
    first = [one["id"] for one in ec2("launch", "--yes", "--json", "--tags", "team=a b").record]
    grown = ec2("resize", "3", "--yes", "--json")
    assert grown.code == 0, grown.err
    ids = [one["id"] for one in grown.record]
    assert set(first) < set(ids)
    assert len(ids) == 4
    assert ec2("resize", "1", answer="n\n").code == 13
    assert ec2("resize", "1", "--dry-run").code == 0
    assert everything(cloud)["instances"] == set(ids)
    shrunk = ec2("resize", "1", "--yes", "--json")
    assert shrunk.code == 0, shrunk.err
    left = [one["id"] for one in shrunk.record]
    assert left == ids[:2]
    assert everything(cloud)["instances"] == set(left)
    assert len(everything(cloud)["volumes"]) == 2
    assert ec2("shutdown", "--yes").code == 0


@pytest.mark.long
def test_hosts_that_do_not_end_are_named(ec2, cloud):
    last = ec2("launch", "--yes", "--json").record[-1]["id"]
    cloud.on("TerminateInstances", refusal("UnauthorizedOperation", "You may not"))
    done = ec2("resize", "1", "--yes")
    assert done.code == 14
    assert f"these may still be there, and cost: {last}" in done.err


@pytest.mark.long
def test_all_that_is_made_carries_the_tags_of_the_settings(ec2, cloud):
    assert ec2("launch", "--yes", "--tags", "team=vision, run=7").code == 0
    client = cloud.moto.client()
    for kind in ("instance", "volume", "security-group", "key-pair"):
        found = client.describe_tags(Filters=[{"Name": "resource-type", "Values": [kind]}])["Tags"]
        things = {one["ResourceId"] for one in found if one["Key"] == CLUSTER}
        for key, value in (("team", "vision"), ("run", "7")):
            assert things == {one["ResourceId"] for one in found
                              if (one["Key"], one["Value"]) == (key, value)}  # fmt: skip
        assert things
    assert ec2("shutdown", "--yes").code == 0


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        ("team", "write KEY=VALUE"),
        ("atomo:cluster=mine", "is taken"),
        ("Name=mine", "is taken"),
        ("a=1,a=2", "different keys"),
    ],
)
def test_tags_that_will_not_do_are_refused(ec2, cloud, tags, told):
    done = ec2("plan", "--tags", tags)
    assert done.code == 2
    assert told in done.err
    assert not cloud.calls
