"""Failover of a launch: without capacity, the next zone or type is tried at once, in
price order.
"""

from dataclasses import replace

import pytest
from cluster.ec2.support.cloud import Reply, everything, fewer, refusal

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "m5.xlarge": 0.192, "m6i.large": 0.09, "gp3": 0.08, "address": 0.005}
SHORTAGE = refusal("InsufficientInstanceCapacity", "We have no m5.large")
TYPES = ("--alternative-types", "m6i.large,m5.xlarge")
ZONES = ("--zones", "us-east-1a,us-east-1b")


def market(prices):
    """Returns a spot market: USD by zone and type."""
    items = "".join(
        f"<item><instanceType>{type}</instanceType><availabilityZone>{zone}</availabilityZone>"
        "<productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{usd}</spotPrice><timestamp>2026-01-01T00:00:00Z</timestamp></item>"
        for (zone, type), usd in prices.items()
    )
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    return Reply(
        200, f'<R xmlns="{space}"><spotPriceHistorySet>{items}</spotPriceHistorySet></R>'.encode()
    )


def zones_of(result):
    assert result.code == 0, result.err
    return [host["zone"] for host in result.record]


def attempts(result):
    assert result.code == 0, result.err
    return [(one["zone"][-1], *one["types"]["worker"]) for one in result.record["attempts"]]


def test_the_plan_has_the_order_and_its_prices(ec2, cloud):
    cloud.prices = PRICES
    plan = ec2("plan", "--json", *TYPES, *ZONES)
    types = ["m6i.large", "m5.large", "m5.xlarge"]
    assert attempts(plan) == [(zone, type) for type in types for zone in "ab"]
    prices = [one["usd_per_hour_of_instances"] for one in plan.record["attempts"]]
    assert prices == pytest.approx([0.096 + 2 * PRICES[type] for type in types for _ in "ab"])
    # A bound holds for every attempt.
    rest = 3 * (100 * 0.08 / 730 + 0.005)
    assert plan.record["usd_until_fuse"] == pytest.approx(8.1 * (0.096 + 2 * 0.192 + rest))
    shown = ec2("plan", *TYPES, *ZONES).out
    assert "1      us-east-1a  m6i.large             $0.2760" in shown
    assert max(map(len, shown.partition("\ncost ")[0].splitlines())) <= 80


def test_spot_zones_come_by_their_price_and_take_any_type(ec2, cloud):
    prices = {("us-east-1b", "m5.large"): 0.03, ("us-east-1a", "m5.large"): 0.04}
    cloud.on("DescribeSpotPriceHistory", market(prices), times=9)
    words = ("--worker-method", "spot", "--alternative-types", "m6i.large", "--yes", "--json")
    cloud.prices = PRICES
    zones = ("--zones", "us-east-1a,us-east-1b,us-east-1c")
    plan = ec2("plan", "--json", *words[:4], *zones)
    assert attempts(plan) == [(zone, "m5.large", "m6i.large") for zone in "bac"]
    cloud.on("CreateFleet", fewer)
    done = ec2("launch", *words, *zones)
    assert zones_of(done) == ["us-east-1a"] * 3
    assert "AWS has no m5.large or m6i.large in us-east-1b (UnfulfillableCapacity)" in done.err
    assert everything(cloud)["instances"] == {host["id"] for host in done.record}
    assert not everything(cloud)["templates"]


def test_a_shortage_is_answered_elsewhere_and_at_once(ec2, cloud, naps):
    """EC2 calls a shortage an error of its server, of the kind that is asked again."""
    cloud.prices, cloud.quotas = PRICES, {}  # or moto fails, and is asked again
    called = []

    def scarce(words, forward):
        called.append((words["InstanceType"], words["SubnetId"]))
        if len(called) in (2, 3):  # the workers are there, their master is not; then no workers
            return replace(SHORTAGE, status=500)
        return None

    cloud.on("RunInstances", scarce, times=9)
    done = ec2("launch", "--yes", "--json")
    assert zones_of(done) == ["us-east-1c"] * 3
    assert len({subnet for _, subnet in called}) == 3
    assert len(called) == 5
    assert not naps
    assert "AWS has no m5.large in us-east-1a (InsufficientInstanceCapacity); next: m5." in done.err
    assert everything(cloud)["instances"] == {host["id"] for host in done.record}
    assert ec2("shutdown", "--yes").code == 0


def test_what_is_missing_goes_where_the_others_are(ec2, cloud):
    cloud.prices = PRICES
    words = ("--yes", "--json", "--availability-zone", "us-east-1b")
    assert ec2("launch", *words, "--n-workers", "1").code == 0
    plan = ec2("plan", "--json", *TYPES)
    assert attempts(plan) == [("b", "m6i.large"), ("b", "m5.large"), ("b", "m5.xlarge")]
    cloud.on("RunInstances", SHORTAGE)
    done = ec2("launch", "--yes", "--json", *TYPES)
    assert zones_of(done) == ["us-east-1b"] * 3
    assert [host["type"] for host in done.record] == ["m5.large"] * 3


def test_what_is_no_shortage_is_not_tried_elsewhere(ec2, cloud):
    before = everything(cloud)
    cloud.on("RunInstances", refusal("VcpuLimitExceeded", "You have requested more"))
    done = ec2("launch", "--yes")
    assert done.code == 10
    assert "VcpuLimitExceeded" in done.err
    assert everything(cloud) == before


def test_hosts_of_a_failed_attempt_that_do_not_end_stop_the_launch(ec2, cloud):
    cloud.on("RunInstances", lambda *_: None)
    cloud.on("RunInstances", SHORTAGE)
    cloud.on("TerminateInstances", refusal("UnauthorizedOperation", "You may not"), times=99)
    done = ec2("launch", "--yes")
    assert done.code == 14
    assert "still there, and costing: instance i-" in done.err
    assert cloud.calls.count("RunInstances") == 2
