"""Workers that replace others: the order in which a supervisor asks for them, and `plan` shows."""

import re
from datetime import datetime, timedelta, timezone

import pytest
from cluster.ec2.faults.supervised import host_pool_of
from cluster.ec2.support.cloud import Reply, everything, refusal, write_cluster

from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.lock import launch_lock
from atomo_cluster.ec2.launch.plan import make_plan
from atomo_cluster.ec2.launch.replacements import show_replacements
from atomo_cluster.ec2.targets.selection import inner_network
from atomo_cluster.errors import CloudError, NotReady

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "m6i.large": 0.09, "gp3": 0.08, "address": 0.005}
SPOT = {"name": "test", "worker_method": "spot", "method": "", "supervise": True, "max_usd": 5.0,
        "availability_zone": "us-east-1a", "alternative_types": "m6i.large"}  # fmt: skip
SPREAD = SPOT | {"availability_zone": "", "zones": "us-east-1a,us-east-1c", "spread_zones": True}
NONE = refusal("InsufficientInstanceCapacity", "We have none")


def now():
    return datetime.now(timezone.utc)


@pytest.fixture
def short(ec2, cloud, folder, monkeypatch):
    """Returns a function that launches a cluster, which then loses a worker, and its pool."""
    cloud.prices = PRICES
    for name in ("bootstrap", "run_commands"):
        monkeypatch.setattr(f"atomo_cluster.ec2.supervisor.host_pool.{name}", lambda *_: None)

    def begin(settings):
        write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), **settings)
        assert ec2("launch", "--yes").code == 0
        pool = host_pool_of(folder, lambda run, hosts: None)
        pool.look(now())
        cloud.moto.client().terminate_instances(InstanceIds=[pool.hosts[-1].id])
        pool.look(now())
        return pool

    return begin


def orders(pool):
    """Returns the order in which a plan shows the hosts that replace a worker."""
    run: Run = pool._run
    plan = show_replacements(run.aws, make_plan(run.aws, run.cluster, run.owned))
    return [(one.groups[0].method, one.subnet.zone[-1], *one.groups[0].types)
            for one in plan.replacements]  # fmt: skip


def test_on_demand_workers_stand_in_where_there_is_no_spot_capacity(short, cloud):
    pool = short(SPOT)
    assert orders(pool) == [("spot", "a", "m5.large", "m6i.large"), ("on-demand", "a", "m6i.large"),
                            ("on-demand", "a", "m5.large")]  # fmt: skip
    cloud.on("CreateFleet", NONE, times=9)
    cloud.on("RunInstances", NONE)
    (id,) = pool.launch(now())
    host = next(host for host in pool.hosts if host.id == id)
    assert (host.type, host.spot, host.zone) == ("m5.large", False, "us-east-1a")
    assert len(everything(cloud)["instances"]) == 3
    assert not everything(cloud)["templates"]


def test_no_worker_costs_more_than_a_spot_price_or_the_budget_says(short, cloud):
    pool = short(SPOT | {"spot_price": 0.092})
    assert [one[0] for one in orders(pool)] == ["spot", "on-demand"]
    assert orders(pool)[1] == ("on-demand", "a", "m6i.large")
    cloud.on("CreateFleet", NONE, times=9)
    cloud.on("RunInstances", NONE, times=9)
    with pytest.raises(CloudError, match="We have none"):
        pool.launch(now())
    assert len(everything(cloud)["instances"]) == 2
    pool._run.__dict__["cluster"] = pool._run.cluster.__class__(
        **vars(pool._run.cluster) | {"max_usd": 2.0}
    )
    with pytest.raises(NotReady, match="with new hosts the cluster may cost"):
        pool.launch(now())


def reduce_to(cloud, most):
    """Has AWS give some hosts of an order that accepts fewer, and none of another."""

    def act(words, forward):
        least = words.get("SpotOptions.MinTargetCapacity", words.get("MinCount"))
        if int(least) > most:
            return NONE
        body = forward().body.decode()
        ids = list(dict.fromkeys(re.findall(r"\bi-[0-9a-f]{17}\b", body)))
        cloud.moto.client().terminate_instances(InstanceIds=ids[most:])
        for id in ids[most:]:
            body = re.sub(rf"<item>(?:(?!<item>).)*{id}.*?</item>", "", body, flags=re.DOTALL)
        return Reply(200, body.encode())

    return act


@pytest.mark.parametrize("spot", [True, False])
def test_workers_come_in_part_where_aws_has_not_all(short, cloud, spot):
    pool = short(SPOT | {"worker_method": "spot" if spot else "on-demand", "n_workers": 4})
    cloud.moto.client().terminate_instances(InstanceIds=[host.id for host in pool.hosts[2:]])
    pool.look(now())
    assert pool.missing == 3
    cloud.on("CreateFleet" if spot else "RunInstances", reduce_to(cloud, 2))
    ids = pool.launch(now())
    assert len(ids) == 2
    assert {host.id for host in pool.hosts} >= set(ids)
    assert pool.prepared()
    pool.look(now())
    assert (pool.missing, len(pool.ready)) == (1, 4)
    assert len(everything(cloud)["instances"]) == 4


def test_a_worker_comes_alone_where_the_account_has_no_room_for_two(short, cloud):
    pool = short(SPOT | {"worker_method": "on-demand", "alternative_types": ""})
    cloud.moto.client().terminate_instances(InstanceIds=[pool.hosts[-1].id])
    pool.look(now())
    full = refusal("VcpuLimitExceeded", "You have requested more vCPU than your limit")
    cloud.on("RunInstances", lambda words, _: full if words["MaxCount"] == "2" else None, times=2)
    assert len(pool.launch(now())) == 1
    assert len(everything(cloud)["instances"]) == 2


def test_one_launch_at_a_time_on_the_master(short, cloud):
    pool = short(SPOT)
    cluster = pool._run.given
    with launch_lock(cluster.state, cluster.name), pytest.raises(CloudError, match="under way"):
        pool.launch(now())
    assert len(everything(cloud)["instances"]) == 2
    assert len(pool.launch(now())) == 1


def test_other_zones_are_asked_only_where_traffic_between_zones_may_cost(short, cloud, ec2):
    pool = short(SPREAD | {"alternative_types": ""})
    assert orders(pool) == [(how, zone, "m5.large") for zone in "ac" for how in
                            ("spot", "on-demand")]  # fmt: skip
    cloud.on("CreateFleet", NONE)
    cloud.on("RunInstances", NONE)
    (id,) = pool.launch(now() + timedelta(minutes=1))
    host = next(host for host in pool.hosts if host.id == id)
    assert (host.spot, host.zone) == (True, "us-east-1c")
    assert len(set(inner_network(pool._run).split(","))) == 2  # MPI uses both subnets
    assert ec2("plan", "--spread-zones", "yes", "--efa", "yes").code == 2
    assert ec2("plan", "--spread-zones", "yes", "--supervise", "no").code == 2


def test_the_plan_says_how_workers_are_replaced(ec2, cloud, folder):
    cloud.prices = PRICES
    write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), **SPOT)
    shown = " ".join(ec2("plan").out.split())
    assert "replaced a worker that goes: spot m5.large or m6i.large in us-east-1a" in shown
    assert "then on-demand m6i.large in us-east-1a, $0.0900 per hour; then on-demand" in shown
    assert "never from another region" in shown
    record = ec2("plan", "--json").record["replacements"]
    assert [one["method"] for one in record] == ["spot", "on-demand", "on-demand"]
    assert "replaced" not in ec2("plan", "--supervise", "no", "--max-usd", "5").out
