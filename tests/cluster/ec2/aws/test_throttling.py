"""AWS says slow down: the tool does, for a while."""

import pytest
from botocore.retries.standard import ExponentialBackoff
from cluster.ec2.support.cloud import everything, refusal

from atomo_cluster.ec2.aws.client import session

pytestmark = pytest.mark.long

SLOW_DOWN = refusal("RequestLimitExceeded", "Request limit exceeded.")


def test_throttled_calls_are_repeated_after_growing_waits(ec2, cloud, naps, monkeypatch):
    # The waits are drawn between zero and their bounds, which are to grow.
    bounds = (20, lambda: 1.0, None, None)
    monkeypatch.setattr(ExponentialBackoff.__init__, "__defaults__", bounds)
    monkeypatch.setattr(
        "atomo_cluster.ec2.aws.client.session", session
    )  # clients that know the bounds
    for action in ("RunInstances", "CreateSecurityGroup", "TerminateInstances"):
        cloud.on(action, SLOW_DOWN, times=4)
    done = ec2("launch", "--yes")
    assert done.code == 0, done.err
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["instances"]
    waits = [nap for nap in naps if nap >= 1]
    assert waits[:4] == [1, 2, 4, 8]


def test_throttling_without_end_is_named(ec2, cloud):
    before = everything(cloud)
    cloud.on("RunInstances", SLOW_DOWN, times=8)
    done = ec2("launch", "--yes")
    assert done.code == 10
    assert "RequestLimitExceeded" in done.err
    assert "still throttled after 8 attempts: wait a few minutes" in done.err
    assert cloud.calls.count("RunInstances") == 8
    assert everything(cloud) == before


def test_no_aws_at_all_is_named(ec2, cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = ec2("status")
    assert done.code == 10
    assert "EndpointConnectionError" in done.err
    assert "is there a network, and does the region exist?" in done.err


def test_no_credentials_are_named(ec2, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session.cache_clear()  # it remembers credentials
    done = ec2("plan")
    assert done.code == 10
    assert "set AWS_PROFILE, or run `aws configure` or `aws sso login`" in done.err
