"""Two launches at once: the second is refused, on the same machine and on another one."""

import pytest
from cluster.ec2.support.cloud import everything
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.launch.lock import launch_lock
from atomo_cluster.errors import NotReady

UNDER_WAY = "another launch of test is under way on this machine (process "


def test_one_launch_at_a_time_holds_the_lock(tmp_path):
    with launch_lock(tmp_path / "test", "test"):
        with pytest.raises(NotReady) as refused, launch_lock(tmp_path / "test", "test"):
            pass
        with launch_lock(tmp_path / "other", "other"):
            pass
    assert str(refused.value).startswith(UNDER_WAY)
    with launch_lock(tmp_path / "test", "test"):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("command", ["launch", "resize 3", "clean_launch_and_run"])
def test_a_second_launch_on_this_machine_asks_and_launches_nothing(ec2, cloud, folder, command):
    hosts = {start(cloud, "master")} if command != "launch" else set()
    with launch_lock(folder / "state/test", "test"):
        done = ec2(*command.split(), "--yes")
    assert done.code == 12
    assert UNDER_WAY in done.err
    assert everything(cloud)["instances"] == hosts
    assert ec2("launch", "--dry-run").code == 0


@pytest.mark.slow
def test_hosts_that_another_machine_launches_before_the_order_are_named(ec2, cloud, monkeypatch):
    """The other machine launches while this one shows its plan and asks."""
    theirs = []
    monkeypatch.setattr(
        "atomo_cluster.ec2.invocation.run.Run.confirm",
        lambda *_: theirs.extend(start(cloud, role) for role in ("master", "worker")),
    )
    done = ec2("launch")
    assert done.code == 12
    assert f"{theirs[0]}, {theirs[1]}, launched from an unknown machine" in done.err
    assert "nothing was launched here" in done.err
    assert everything(cloud)["instances"] == set(theirs)
    assert "RunInstances" not in cloud.calls
