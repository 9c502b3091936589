"""Tags that somebody has edited by hand: read as unknown, named, and in nobody's way."""

from math import inf

import pytest
from cluster.ec2.support.cloud import everything
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.aws.inventory import hours_in, role_in
from atomo_cluster.ec2.aws.tags import CLUSTER, HOURS, OWNER, ROLE
from atomo_cluster.ec2.hosts.ssh import Answer

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
SMALL = ("--n-workers", "1")


@pytest.mark.parametrize("value", ["8h", "", "nan", "-1", "0", "1e999", "acht"])
def test_hours_are_a_positive_number(value):
    assert hours_in({HOURS: "7.5"}) == 7.5
    assert hours_in({HOURS: value}) == inf


def test_the_name_tells_a_role_that_its_tag_does_not():
    assert role_in({ROLE: "worker", "Name": "test-master"}) == "worker"
    assert role_in({ROLE: "boss", "Name": "test-master"}) == "master"
    assert role_in({"Name": "mine"}) == ""


@pytest.fixture
def pair(cloud):
    """Returns the identifiers of a master and a worker."""
    cloud.prices = PRICES
    return [start(cloud, role) for role in ("master", "worker")]


def edit(cloud, id, key, value):
    """Changes a tag; None deletes it."""
    client = cloud.moto.client()
    if value is None:
        client.delete_tags(Resources=[id], Tags=[{"Key": key}])
    else:
        client.create_tags(Resources=[id], Tags=[{"Key": key, "Value": value}])


@pytest.mark.long
@pytest.mark.parametrize("value", ["8h", "", None])
def test_hours_that_are_no_number_are_an_unknown_fuse(ec2, cloud, pair, value):
    master, worker = pair
    edit(cloud, worker, HOURS, value)
    shown = ec2("status", "--json", *SMALL)
    assert shown.code == 0, shown.err
    hours = {host["id"]: host["max_hours"] for host in shown.record["hosts"]}
    assert hours == {master: 8.0, worker: None}
    text = f"no tag {HOURS}" if value is None else f"the tag {HOURS} is {value!r}"
    assert f"warning: {worker}: {text} (an edit by hand? It is read as unknown)" in shown.err
    cost = ec2("cost", "--json", *SMALL)
    assert cost.code == 0, cost.err
    bounds = {row["id"]: row["usd_until_fuse"] for row in cost.record["hosts"]}
    assert bounds[worker] is None
    assert bounds[master] is not None
    assert cost.record["usd_until_fuse"] is None
    assert all(row["usd_per_hour"] for row in cost.record["hosts"] if row["id"] in pair)
    for verb in ("list_running_instances", "get_hosts", "plan", "start_hosts"):
        done = ec2(verb, *SMALL)
        assert done.code == 0, (verb, done.err)
        assert worker in done.err
    limited = ec2("launch", "--yes", "--max-usd", "1000", "--n-workers", "2")
    assert limited.code == 12  # no bound is known
    assert "max_usd is $1,000.00, and AWS does not say" in limited.err
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["instances"]


@pytest.mark.long
def test_extend_sets_an_unknown_fuse(ec2, cloud, pair, monkeypatch):
    edit(cloud, pair[1], HOURS, "8h")
    monkeypatch.setattr("atomo_cluster.ec2.hosts.ssh.Ssh.run",
                        lambda ssh, host, *_: Answer(host, 0, "", ""))  # fmt: skip
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.HostKeys.pin", lambda *_: "key")
    done = ec2("extend", "9", "--yes", *SMALL)
    assert done.code == 0, done.err
    after = ec2("status", "--json", *SMALL)
    assert "warning" not in after.err
    assert [host["max_hours"] for host in after.record["hosts"]] == pytest.approx([9, 9], rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize(("number", "value"), [(0, "boss"), (1, None)])
def test_a_role_that_is_none_is_inferred(ec2, cloud, pair, number, value):
    edit(cloud, pair[number], ROLE, value)
    shown = ec2("status", "--json", *SMALL)
    assert shown.code == 0, shown.err
    roles = {host["id"]: host["role"] for host in shown.record["hosts"]}
    assert roles == dict(zip(pair, ("master", "worker"), strict=True))
    assert f"it counts as a {('master', 'worker')[number]}" in shown.err
    assert "is complete: 2 hosts" in ec2("plan", *SMALL).out
    assert ec2("cost").code == 0
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["instances"]


@pytest.mark.long
def test_hosts_without_any_role_are_not_taken_for_surplus_workers(ec2, cloud, pair):
    for id in pair:
        edit(cloud, id, ROLE, None)
    assert ec2("status", *SMALL).code == 0
    done = ec2("resize", "0", "--yes")
    assert done.code != 0
    assert len(everything(cloud)["instances"]) == 2
    edit(cloud, pair[0], "Name", "test-master")  # as `launch` names hosts
    shown = ec2("status", "--json", *SMALL)
    assert [host["id"] for host in shown.record["hosts"]] == pair


@pytest.mark.long
@pytest.mark.parametrize(
    ("edits", "forgotten"),
    [({CLUSTER: None}, False), ({OWNER: ""}, False), ({CLUSTER: "", OWNER: None}, True)],
)
def test_a_host_that_lost_its_tags_is_named_counted_and_ended(ec2, cloud, folder, edits, forgotten):
    cloud.prices = PRICES
    hosts = ec2("launch", "--yes", "--json", *SMALL).record
    if forgotten:  # the root disk, which carries the tags, tells too
        (folder / "state/test/hosts.json").unlink()
    lost = hosts[1]["id"]
    for key, value in edits.items():
        edit(cloud, lost, key, value)
    shown = ec2("status", "--json", *SMALL)
    assert shown.code == 0, shown.err
    assert {host["id"] for host in shown.record["hosts"]} == {host["id"] for host in hosts}
    source = "its disk" if forgotten else "the ledger"
    assert (
        f"{lost} lives, and lacks the tags of the cluster (an edit by hand?): {source}" in shown.err
    )
    assert len(ec2("cost", "--json").record["hosts"]) == 2
    refused = ec2("shutdown", answer="no\n")
    assert refused.code == 13
    assert f"instance {lost} running, without the tags of the cluster" in refused.out
    done = ec2("shutdown", "--yes")
    assert done.code == 0, done.err
    assert not everything(cloud)["instances"]


@pytest.mark.long
def test_a_host_with_the_tags_of_another_cluster_is_left_to_that_one(ec2, cloud, folder):
    hosts = ec2("launch", "--yes", "--json", *SMALL).record
    moved = hosts[1]["id"]
    edit(cloud, moved, CLUSTER, "other")
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert f"{moved} of the ledger runs and costs, with the tags of cluster 'other'" in done.err
    assert "verified" not in done.out
    assert everything(cloud)["instances"] == {moved}
    assert ec2("shutdown", "--yes", "--name", "other").code == 0
    assert not everything(cloud)["instances"]
    assert ec2("shutdown", "--yes").code == 0
