"""Cost reports: before a launch and while a cluster runs, and never from invented prices."""

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from cluster.ec2.support.cloud import Reply, everything, write_cluster

from atomo_cluster.ec2.aws.tags import CLUSTER, OWNER

pytestmark = pytest.mark.slow

PRICES = {"m5.large": 0.096, "g4dn.xlarge": 0.526, "gp3": 0.08, "address": 0.005}
GB_HOUR = 0.08 / 730
HOST = 0.096 + 100 * GB_HOUR + 0.005
LEDGER = "state/test/hosts.json"


def test_the_plan_adds_up(ec2, cloud):
    cloud.prices = PRICES
    done = ec2("plan", "--max-hours", "10", "--json")
    assert done.code == 0, done.err
    plan = done.record
    assert [(group["role"], group["count"]) for group in plan["launch"]] == [
        ("master", 1),
        ("worker", 2),
    ]
    assert plan["usd_per_hour"] == pytest.approx(3 * HOST)
    assert plan["usd_until_fuse"] == pytest.approx(3 * 10.1 * HOST)
    result = ec2("plan", "--worker-type", "g4dn.xlarge", "--image-id", "latest")
    assert result.code == 2  # moto has no image for GPUs
    assert "AWS names no image for m5.large in us-east-1" in result.err
    shown = ec2("plan").out
    for word in (
        "m5.large",
        "8 GiB",
        "Up to 10 Gigabit",
        "100 GB gp3",
        "2 x $0.0960",
        "$0.3359",
        "$2.72",
    ):
        assert word in shown


def test_reserved_means_on_demand_and_says_so(ec2, cloud):
    cloud.prices = PRICES
    plan = ec2("plan", "--method", "reserved", "--json").record
    assert plan["usd_per_hour"] == pytest.approx(3 * HOST)
    assert "method   reserved: launched as on-demand and priced so" in (
        ec2("plan", "--method", "reserved").out
    )
    hosts = ec2("launch", "--yes", "--method", "reserved", "--json").record
    assert not any(host["spot"] for host in hosts)


def test_the_master_is_bought_on_demand_and_the_workers_on_the_spot_market(ec2, cloud, folder):
    cloud.prices = PRICES
    write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), method="")
    plan = ec2("plan", "--json").record
    methods = [(group["role"], group["method"]) for group in plan["launch"]]
    assert methods == [("master", "on-demand"), ("worker", "spot")]
    assert [group["usd_per_hour"] for group in plan["launch"]] == [0.096, 0.00001]
    limited = ec2("plan", "--spot-price", "0.05", "--json").record  # which binds workers alone
    assert limited["usd_until_fuse"] == pytest.approx(8.1 * (3 * HOST - 2 * (0.096 - 0.05)))
    assert "1 master   m5.large" in ec2("plan").out
    hosts = ec2("launch", "--yes", "--json").record
    assert [host["spot"] for host in hosts] == [False, True, True]
    costs = ec2("cost", "--json").record["hosts"]
    assert costs[0]["usd_per_hour"] == pytest.approx(HOST)
    assert all(one["usd_per_hour"] < 0.02 for one in costs[1:])  # disk and address alone


@pytest.mark.parametrize(
    ("words", "spot"),
    [
        ("--method spot", [True, True]),
        ("--method on-demand", [False, False]),
        ("--method spot --master-method reserved", [False, True]),
        ("--method= --master-method spot --worker-method on-demand", [True, False]),
    ],
)
def test_the_method_of_a_role_wins_over_that_of_all(ec2, cloud, words, spot):
    found = ec2("launch", "--yes", "--json", "--n-workers", "1", *words.split())
    assert found.code == 0, found.err
    assert [host["spot"] for host in found.record] == spot


def test_the_plan_shows_gpus(ec2, cloud):
    cloud.prices = PRICES
    group = ec2("plan", "--worker-type", "g4dn.xlarge", "--json").record["launch"][1]
    assert (group["gpus"], group["vcpus"], group["memory_gib"]) == (1, 4, 16)
    assert "1 x NVIDIA T4" in ec2("plan", "--worker-type", "g4dn.xlarge").out


def test_spot_prices_are_those_of_the_zone_and_moment(ec2, cloud):
    cloud.prices = PRICES
    item = "<item><instanceType>m5.large</instanceType><productDescription>{}</productDescription>"
    item += "<availabilityZone>us-east-1a</availabilityZone>"
    item += "<spotPrice>{}</spotPrice><timestamp>2026-01-0{}T00:00:00Z</timestamp></item>"
    items = item.format("Linux/UNIX", 0.03, 1) + item.format("Linux/UNIX", 0.04, 2)
    items += item.format("Windows", 0.2, 3)
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    body = f'<R xmlns="{space}"><spotPriceHistorySet>{items}</spotPriceHistorySet></R>'
    asked = []

    def history(words, forward):
        asked.append((words["Filter.1.Value.1"], words["InstanceType.1"]))
        return Reply(200, body.encode())

    cloud.on("DescribeSpotPriceHistory", history)
    plan = ec2("plan", "--method", "spot", "--json").record
    assert asked == [("us-east-1a", "m5.large")]
    assert plan["usd_per_hour"] == pytest.approx(3 * (HOST - 0.096 + 0.04))
    assert plan["usd_until_fuse"] == pytest.approx(3 * 8.1 * HOST)  # a bound: the price may rise
    limited = ec2("plan", "--method", "spot", "--spot-price", "0.05", "--json").record
    assert limited["usd_until_fuse"] == pytest.approx(3 * 8.1 * (HOST - 0.096 + 0.05))


def test_the_bound_is_that_of_the_dearest_type(ec2, cloud):
    cloud.prices = PRICES
    words = ("--method", "spot", "--alternative-types", "g4dn.xlarge", "--n-workers", "1")
    plan = ec2("plan", "--json", *words).record
    assert plan["usd_until_fuse"] == pytest.approx(8.1 * (2 * HOST - 0.096 + 0.526))


def age(folder, hours):
    """Writes down a host of the cluster that ran for some hours, of which EC2 no longer tells."""
    ledger = folder / LEDGER
    entries = json.loads(ledger.read_text())
    start = datetime.now(timezone.utc) - timedelta(hours=9)
    ran = {"id": "i-0", "launched": start.isoformat(), "ended": True,
           "until": (start + timedelta(hours=hours)).isoformat()}  # fmt: skip
    ledger.write_text(json.dumps([*entries, entries[0] | ran]))


def test_a_launch_keeps_within_its_budget(ec2, cloud, folder):
    cloud.prices = PRICES
    words = ("launch", "--yes", "--max-hours", "9.9", "--max-usd")
    dear = ec2(*words, "3.3")  # ten hours of three hosts are 3.36
    assert dear.code == 12
    assert "the cluster may cost $3.36 until its fuses, and max_usd is $3.30" in dear.err
    assert not everything(cloud)["instances"]
    assert ec2(*words, "3.4", "--n-workers", "1").code == 0
    more = ec2(*words, "3.3")  # including the running hosts
    assert more.code == 12
    assert ec2(*words, "3.4", "--dry-run").code == 0
    age(folder, hours=1)
    gone = ec2(*words, "3.4", "--dry-run")  # and with one that ran for an hour
    assert gone.code == 12
    assert "the cluster may cost $3.47 until its fuses" in gone.err
    older = ec2("extend", "9.9", "--yes", "--max-usd", "2.3", "--n-workers", "1")
    assert older.code == 12
    assert "the cluster may cost $2.35 until its fuses" in older.err
    cloud.prices = None
    unknown = ec2(*words, "1000")
    assert unknown.code == 12
    assert "AWS does not say what the cluster may cost" in unknown.err
    assert len(everything(cloud)["instances"]) == 2


@pytest.mark.parametrize("missing", ["m5.large", "gp3", "address"])
def test_what_aws_does_not_tell_is_unknown(ec2, cloud, missing):
    cloud.prices = {key: value for key, value in PRICES.items() if key != missing}
    plan = ec2("plan", "--json").record
    assert plan["usd_per_hour"] is None
    assert plan["usd_until_fuse"] is None
    known = [part for part in plan["usd_per_hour_of"].values() if part is not None]
    assert len(known) == 2
    shown = ec2("plan").out
    assert "cost     unknown per hour (instances " in shown
    assert "at most unknown until the fuse" in shown


def test_cost_grows_with_time(ec2, cloud, monkeypatch):
    cloud.prices = PRICES
    assert ec2("cost", "--json").record["usd_per_hour"] == 0
    assert ec2("launch", "--yes", "--max-hours", "8").code == 0

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(timezone.utc) + timedelta(hours=3)

    monkeypatch.setattr("atomo_cluster.ec2.money.costs.datetime", Later)
    cost = ec2("cost", "--json").record
    assert cost["usd_per_hour"] == pytest.approx(3 * HOST)
    assert cost["usd_so_far"] == pytest.approx(9 * HOST, rel=1e-2)
    assert cost["usd_until_fuse"] == pytest.approx(24 * HOST, rel=1e-2)
    assert len(cost["hosts"]) == 3
    assert "$0.3359" in ec2("cost").out
    cloud.prices = None
    assert "unknown" in ec2("cost").out


def test_cost_counts_hosts_that_have_ended_and_the_disks_that_there_are(ec2, cloud):
    cloud.prices = PRICES
    assert ec2("launch", "--yes", "--json").code == 0
    client = cloud.moto.client()
    first, *_ = ec2("status", "--json").record["hosts"]
    (disk,) = client.describe_volumes(
        Filters=[{"Name": "attachment.instance-id", "Values": [first["id"]]}]
    )["Volumes"]
    client.modify_volume(VolumeId=disk["VolumeId"], Size=500)
    tags = [{"Key": CLUSTER, "Value": "test"}, {"Key": OWNER, "Value": "user/moto"}]
    loose = client.create_volume(
        AvailabilityZone="us-east-1a", Size=8, VolumeType="gp3",
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )["VolumeId"]  # fmt: skip
    gone = ec2("status", "--json").record["hosts"][-1]["id"]
    client.terminate_instances(InstanceIds=[gone])
    cost = ec2("cost", "--json").record
    rows = {one["id"]: one for one in cost["hosts"]}
    assert rows[gone]["state"] == "terminated"
    assert rows[gone]["usd_per_hour"] == 0
    assert rows[gone]["usd_so_far"] == rows[gone]["usd_until_fuse"]
    assert rows[first["id"]]["usd_per_hour"] == pytest.approx(HOST + 400 * GB_HOUR)
    assert rows[loose]["usd_per_hour"] == pytest.approx(8 * GB_HOUR)
    assert cost["usd_per_hour"] == pytest.approx(2 * HOST + 408 * GB_HOUR)


@pytest.mark.parametrize("reason", ["User initiated (2026-01-01 03:00:00 GMT)", "Server.Spot"])
def test_an_ended_host_counts_until_its_end(reason, ec2, cloud, monkeypatch):
    cloud.prices = PRICES
    assert ec2("launch", "--yes", "--max-hours", "5").code == 0
    client = cloud.moto.client()
    client.terminate_instances(InstanceIds=list(everything(cloud)["instances"]))

    def with_old_times(words, forward):
        body = forward().body.decode()
        body = re.sub("<launchTime>[^<]*", "<launchTime>2026-01-01T01:00:00.000Z", body)
        return Reply(200, re.sub("<reason>[^<]*", f"<reason>{reason}", body).encode())

    cloud.on("DescribeInstances", with_old_times, times=9)
    hours = {round(one["hours"], 2) for one in ec2("cost", "--json").record["hosts"]}
    # The host that the launch recorded has ended just now. The one that EC2 reports ran for two
    # hours, or at most for the hours of its fuse.
    assert hours == {0.0, 2.0 if "2026" in reason else 5.0}


@pytest.mark.long
def test_the_cost_is_true_after_the_end(ec2, cloud, folder, monkeypatch):
    cloud.prices = PRICES
    hosts = ec2("launch", "--yes", "--json", "--max-hours", "5").record
    lost = hosts[-1]["id"]
    cloud.moto.client().terminate_instances(InstanceIds=[lost])  # and no command runs for hours

    class Later(datetime):
        hours = 3

        @classmethod
        def now(cls, tz=None):
            return datetime.now(timezone.utc) + timedelta(hours=cls.hours)

    for module in ("commands.clusters.ledger_end", "money.costs"):
        monkeypatch.setattr(f"atomo_cluster.ec2.{module}.datetime", Later)
    assert ec2("shutdown", "--yes").code == 0
    cloud.moto.reset()  # EC2 has forgotten the hosts
    Later.hours = 100
    cost = ec2("cost", "--json").record
    assert [one["hours"] for one in cost["hosts"]] == pytest.approx([3, 3, 3], rel=1e-2)
    assert cost["usd_so_far"] == cost["usd_until_fuse"] == pytest.approx(9 * HOST, rel=1e-2)
    assert cost["usd_per_hour"] == 0
    (folder / "state/test/hosts.json").write_text("[")
    damaged = ec2("cost")
    assert damaged.code == 2
    assert "hosts.json: Expecting value" in damaged.err
    launched = ec2("launch", "--yes")
    assert launched.code == 0  # a cluster is worth more than its record
    assert "not written down: " in launched.out
    assert ec2("shutdown", "--yes").code == 0


def test_tables_fit_into_80_columns(ec2, cloud):
    cloud.prices = PRICES
    words = ("--method", "spot", "--worker-type", "g4dn.12xlarge", "--n-workers", "10")
    shown = [ec2("plan", *words).out]
    assert ec2("launch", "--yes", *words).code == 0
    shown += [ec2(command).out for command in ("status", "list_running_instances", "cost")]
    assert "deeplearning-worker11" in shown[1]
    for text in shown:
        rows = text.partition("\ncost ")[0].splitlines()  # sentences may wrap
        assert max(map(len, rows)) <= 80
