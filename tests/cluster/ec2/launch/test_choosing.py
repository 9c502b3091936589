"""The choice of instance types by hardware and price."""

import pytest
from cluster.ec2.support.cloud import refusal

pytestmark = pytest.mark.long

PRICES = {"g4dn.xlarge": 0.526, "g5.xlarge": 1.006, "p3.2xlarge": 3.06, "m5.large": 0.096}


def test_the_cheapest_types_that_suffice_come_first(ec2, cloud):
    cloud.prices = PRICES
    words = ("cheapest", "--gpus", "1", "--memory", "16")
    done = ec2(*words, "--worker-method", "on-demand", "--json")
    assert done.code == 0, done.err
    assert [one["type"] for one in done.record[:2]] == ["g4dn.xlarge", "g5.xlarge"]
    assert [one["on_demand"] for one in done.record[:2]] == [0.526, 1.006]
    assert len(done.record) == 10
    assert all(one["gpus"] >= 1 and one["memory_gib"] >= 16 for one in done.record)
    shown = ec2(*words, "--worker-method", "on-demand").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "$0.5260" in shown
    assert ec2(*words, "--gpus", "1000").code == 10


def test_without_prices_types_are_found_still(ec2, cloud):
    denied = refusal("UnauthorizedOperation", "You may not")
    for action in ("GetProducts", "DescribeSpotPriceHistory"):
        cloud.on(action, denied, times=9)
    done = ec2("cheapest", "--vcpus", "96", "--limit", "3", "--json")
    assert done.code == 0, done.err
    assert [(one["on_demand"], one["spot"], one["zone"]) for one in done.record] == (
        [(None, None, "")] * 3
    )
    assert "unknown" in ec2("cheapest", "--vcpus", "96").out
