"""The ledger knows the place of each host, and no command says of a host that it cannot see that it
has ended.
"""

import json

import pytest
from cluster.ec2.support.cloud import everything, refusal, region, write_cluster

from atomo_cluster.ec2.invocation.ledger_file import LedgerEntry
from atomo_cluster.ec2.settings.place import Place

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
ACCOUNT, OTHER = "123456789012", "210987654321"
LEDGER = "state/test/hosts.json"
EAST, WEST = ("--region", "us-east-1"), ("--region", "us-west-2")
START, FUSE = "2026-01-01T00:00:00+00:00", "2026-01-01T08:00:00+00:00"


def running(cloud, name):
    """Returns the hosts of a region that cost."""
    client = cloud.moto.region(name)
    batches = client.describe_instances()["Reservations"]
    return {host["InstanceId"] for batch in batches for host in batch["Instances"]
            if host["State"]["Name"] != "terminated"}  # fmt: skip


def ledger(folder):
    return json.loads((folder / LEDGER).read_text())


def alive_in_ledger(folder):
    return {entry["id"] for entry in ledger(folder) if not entry["ended"]}


@pytest.fixture
def west(ec2, cloud, folder):
    """Returns the hosts of a cluster in us-west-2, of which cluster.yaml says nothing."""
    cloud.prices = PRICES
    done = ec2("launch", "--yes", "--json", "--n-workers", "1", *WEST)
    assert done.code == 0, done.err
    return {host["id"] for host in done.record}


def test_a_place_sees_its_account_and_endpoint():
    here = Place("1", "us-east-1")
    assert here.sees(Place("1", "us-west-2"))
    assert not here.covers(Place("1", "us-west-2"))
    assert here.covers(Place("", "us-east-1"))
    assert here.covers(Place())  # of a ledger that has no places
    assert not here.sees(Place("2", "us-east-1"))
    assert not here.sees(Place("1", "us-east-1", "http://127.0.0.1:5000"))
    assert not Place("", "us-east-1").sees(Place("1", "us-east-1"))  # STS does not answer


@pytest.mark.long
def test_every_verb_finds_the_hosts_in_the_region_of_the_ledger(ec2, cloud, folder, west):
    assert {(entry["account"], entry["region"], entry["endpoint"]) for entry in ledger(folder)} == {
        (ACCOUNT, "us-west-2", f"{cloud.url}")
    }
    small = ("--n-workers", "1")
    shown = ec2("status", "--json", *small)
    assert shown.code == 0, shown.err
    assert {host["id"] for host in shown.record["hosts"]} == west
    assert f"place: account {ACCOUNT}, region us-west-2, endpoint {cloud.url}" in shown.err
    cost = ec2("cost", "--json").record
    assert {row["id"] for row in cost["hosts"]} == west
    assert cost["usd_per_hour"] > 0.19
    for verb in ("get_hosts", "list_running_instances", "validate"):
        done = ec2(verb, *small)
        assert done.code == 0, (verb, done.err)
        assert "region us-west-2" in done.err
    twice = ec2("launch", "--yes", *small)
    assert twice.code == 2
    assert "test has hosts in us-west-2, as the ledger says, and the settings name" in twice.err
    assert not running(cloud, "us-east-1")
    assert ec2("resize", "2", "--yes").code == 0
    assert len(running(cloud, "us-west-2")) == 3
    gone = ec2("shutdown", "--yes")
    assert gone.code == 0, gone.err
    assert not running(cloud, "us-west-2")
    assert "verified: nothing in us-west-2 carries the tags" in gone.out
    assert not alive_in_ledger(folder)
    after = ec2("cost", "--json").record  # the place of the settings never had any
    assert {row["id"] for row in after["hosts"]} >= west
    assert after["usd_per_hour"] == 0


@pytest.mark.long
def test_a_region_that_refuses_is_not_taken_for_empty(ec2, cloud, folder, west, monkeypatch):
    answer = cloud.answer

    def refused(path, headers, body):
        if region(headers) == "us-west-2" and b"Action=Describe" in body:
            return refusal("UnauthorizedOperation", "You may not")
        return answer(path, headers, body)

    monkeypatch.setattr(cloud, "answer", refused)
    for verb in ("status", "cost", "extend"):
        done = ec2(verb, *(["9"] if verb == "extend" else []))
        assert done.code == 10, (verb, done.out)
        assert "us-west-2" in done.err
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert "verified: nothing in us-west-2" not in done.out
    assert alive_in_ledger(folder) == west


@pytest.mark.long
def test_hosts_in_another_account_may_run_and_are_named(ec2, cloud, folder, west, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    for verb in ("status", "cost"):
        done = ec2(verb, "--json")
        assert done.code == 10, (verb, done.err)
        assert f"place: account {OTHER}" in done.err
        assert f"account {ACCOUNT}, region us-west-2" in done.err
        assert all(id in done.err for id in west)
        assert "NOT SEEN FROM HERE: 2 hosts of the ledger, which may run and cost" in done.err
        assert (
            "`pytorch_ec2.py status --name test --region us-west-2`, with credentials" in done.err
        )
    assert {row["id"] for row in done.record["hosts"]} == west
    assert done.record["usd_per_hour"] > 0.19
    gone = ec2("shutdown", "--yes")
    assert gone.code == 14
    assert "verified" not in gone.out
    assert "nothing in us-east-1 carries the tags" in gone.out
    assert alive_in_ledger(folder) == west
    assert running(cloud, "us-west-2") == west
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    assert ec2("shutdown", "--yes").code == 0
    assert not running(cloud, "us-west-2")
    assert not alive_in_ledger(folder)


def rehearse(folder, endpoint, account=ACCOUNT):
    """Writes down a host of a rehearsal at an endpoint."""
    entry = LedgerEntry("i-1", "user/moto", "m5.large", START, FUSE, False, 0.1, account,
                        "us-east-1", endpoint)  # fmt: skip
    (folder / "state/test").mkdir(parents=True, exist_ok=True)
    (folder / LEDGER).write_text(json.dumps([vars(entry)]))


@pytest.mark.long
def test_a_left_over_endpoint_is_named_with_what_to_do(ec2, cloud, folder):
    old = "http://127.0.0.1:1"
    rehearse(folder, old)
    shown = ec2("status")
    assert shown.code == 10
    assert f"account {ACCOUNT}, region us-east-1, endpoint {old}" in shown.err
    assert f"`shutdown --forget {old}` takes them out of the ledger" in shown.err
    assert ec2("shutdown", "--yes").code == 14
    assert ec2("shutdown", "--forget", old, answer="no\n").code == 13
    assert alive_in_ledger(folder) == {"i-1"}
    assert ec2("shutdown", "--forget", old, "--yes").code == 0
    assert not ledger(folder)
    assert ec2("shutdown", "--yes").code == 0
    unknown = ec2("shutdown", "--forget", old, "--yes")
    assert unknown.code == 2
    assert "the ledger has no hosts there" in unknown.err


@pytest.mark.long
def test_hosts_of_aws_itself_are_not_looked_for_at_an_emulator(ec2, cloud, folder):
    rehearse(folder, "")
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert f"This command asks {cloud.url}, left over from a rehearsal perhaps" in done.err
    assert "`unset AWS_ENDPOINT_URL`" in done.err
    assert alive_in_ledger(folder) == {"i-1"}


@pytest.mark.slow
def test_an_emulator_that_has_ended_is_named(ec2, cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    done = ec2("status")
    assert done.code == 10
    assert "AWS_ENDPOINT_URL is http://127.0.0.1:1: where that was the emulator" in done.err


@pytest.mark.long
def test_the_end_of_one_of_two_clusters_leaves_the_others_ledger(ec2, cloud, folder, west):
    more = ec2("launch", "--yes", "--json", "--n-workers", "1", *EAST)
    assert more.code == 0, more.err
    east = {host["id"] for host in more.record}
    assert alive_in_ledger(folder) == east | west
    shown = ec2("status", "--json", "--n-workers", "1")
    assert {host["id"] for host in shown.record["hosts"]} == east
    assert "2 hosts of test run in us-west-2 and cost too" in shown.err
    both = {row["id"] for row in ec2("cost", "--json").record["hosts"]}
    assert both == east | west
    done = ec2("shutdown", "--yes", *EAST)
    assert done.code == 0, done.err
    assert running(cloud, "us-west-2") == west
    assert alive_in_ledger(folder) == west
    assert "`shutdown --region us-west-2` ends them" in done.err


@pytest.mark.long
def test_a_shutdown_without_a_region_names_the_other_cluster(ec2, cloud, folder, west):
    assert ec2("launch", "--yes", "--n-workers", "1", *EAST).code == 0
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert not running(cloud, "us-east-1")
    assert running(cloud, "us-west-2") == west
    assert "2 hosts of test run in us-west-2 and cost too" in done.err


@pytest.mark.long
def test_a_ledger_without_places_is_that_of_the_settings(ec2, cloud, folder):
    cloud.prices = PRICES
    assert ec2("launch", "--yes", "--n-workers", "1").code == 0
    for_old = ("account", "region", "endpoint", "profile")
    entries = [{key: value for key, value in entry.items() if key not in for_old}
               for entry in ledger(folder)]  # fmt: skip
    (folder / LEDGER).write_text(json.dumps(entries))
    cost = ec2("cost", "--json")
    assert cost.code == 0, cost.err
    assert len(cost.record["hosts"]) == 2
    assert {entry["region"] for entry in ledger(folder)} == {"us-east-1"}
    (folder / LEDGER).write_text(json.dumps(entries))
    assert ec2("shutdown", "--yes").code == 0
    assert not alive_in_ledger(folder)


@pytest.mark.long
def test_another_owners_part_of_the_ledger_stays(ec2, cloud, folder):
    for owner in ("ana", "bob"):
        write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), owner=owner,
                      n_workers=1)  # fmt: skip
        assert ec2("launch", "--yes").code == 0
    assert {entry["owner"] for entry in ledger(folder)} == {"ana", "bob"}
    assert len(alive_in_ledger(folder)) == 4
    assert ec2("shutdown", "--yes").code == 14  # ana's hosts
    assert len(everything(cloud)["instances"]) == 2
    assert {entry["owner"] for entry in ledger(folder) if not entry["ended"]} == {"ana"}


@pytest.mark.long
def test_all_regions_show_the_cluster_and_whatever_else_its_owner_has(
    ec2, cloud, folder, west, monkeypatch
):
    other = ec2("launch", "--yes", "--json", "--name", "second", "--n-workers", "1", *EAST)
    assert other.code == 0, other.err
    shown = ec2("status", "--all-regions", "--json")
    assert shown.code == 0, shown.err
    ids = {region: {host["id"] for host in hosts}
           for region, hosts in shown.record["regions"].items()}  # fmt: skip
    assert ids == {"us-west-2": west, "us-east-1": {host["id"] for host in other.record}}
    assert "second, owner user/moto" in shown.err
    answer = cloud.answer

    def refused(path, headers, body):
        if region(headers) == "eu-west-1":
            return refusal("UnauthorizedOperation", "You may not")
        return answer(path, headers, body)

    monkeypatch.setattr(cloud, "answer", refused)
    partly = ec2("status", "--all-regions", "--json")
    assert partly.code == 10
    assert "eu-west-1: ec2.describe_instances: UnauthorizedOperation" in partly.err
    assert "`iam --for 'status --all-regions'` prints the rights" in partly.err
    assert set(partly.record["regions"]) == {"us-west-2", "us-east-1"}
