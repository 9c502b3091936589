"""The supervisor's hosts, on an AWS that answers: replaced, counted, ended."""

import base64
import json
from argparse import Namespace
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone

import pytest
from cluster.ec2.faults.supervised import at_once
from cluster.ec2.support.cloud import everything, refusal, write_cluster

from atomo_cluster.ec2.aws.master_policy import master_policy
from atomo_cluster.ec2.aws.policy_scope import PolicyScope
from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.places.aws_ends import AFTER
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.yaml_file import load
from atomo_cluster.ec2.supervisor.handover import master_settings
from atomo_cluster.ec2.supervisor.host_pool import HostPool
from atomo_cluster.errors import CloudError, NotReady, RemoteError

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
HOUR = 0.096 + 100 * 0.08 / 730
PUBLIC = "ssh-ed25519 AAAA atomo-cluster\n"


@pytest.fixture
def pool(ec2, cloud, folder, monkeypatch):
    """Returns a cluster that was launched, as its supervisor sees it."""
    cloud.prices = PRICES
    write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), supervise=True,
                  max_usd=3.0)  # fmt: skip
    assert ec2("launch", "--yes").code == 0
    (folder / "master").mkdir()
    settings = master_settings(load(folder / "cluster.yaml", {}), "user/moto", "atomo-key")
    listed = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    listed |= {"state_dir": str(folder / "master"), "key_name": ""}
    (folder / "handed.yaml").write_text(json.dumps(listed | {"path_to_keyfile": ""}))
    options = Namespace(config=folder / "handed.yaml", endpoint_url=None, hostfile=None)
    for name in ("bootstrap", "run_commands"):
        monkeypatch.setattr(f"atomo_cluster.ec2.supervisor.host_pool.{name}", lambda *_: None)
    made = HostPool(Run(options, Document(enabled=False)), folder / "master", PUBLIC,
                    lambda run, hosts: None, lambda host: True, at_once)  # fmt: skip
    made.look(now())
    assert (made.going, made.missing, made.ready) == ((), 0, made.hosts)
    return made


def now():
    return datetime.now(timezone.utc)


def lose(cloud, pool):
    """Ends a worker as EC2 does."""
    gone = pool.hosts[-1].id
    cloud.moto.client().terminate_instances(InstanceIds=[gone])
    return gone


def test_a_worker_that_is_gone_is_replaced_with_the_fuse_of_the_master(pool, cloud):
    gone, asked = lose(cloud, pool), []
    cloud.on("RunInstances", lambda words, forward: asked.append(words))
    later = now() + timedelta(hours=3)
    pool.look(now())
    assert (pool.going, pool.missing, len(pool.ready)) == ((), 1, 2)
    (id,) = pool.launch(later)
    assert pool.preparing
    assert len(pool.prepared()) == 3
    assert not pool.preparing
    assert gone not in {host.id for host in pool.hosts}
    (fresh,) = [host for host in pool.hosts if host.id == id]  # sorted by id within a second
    assert fresh.max_hours == pytest.approx(5.0, abs=0.01)  # of the master's eight
    group = ClusterTags("test", "user/moto").label
    end = cloud.moto.client("scheduler").get_schedule(GroupName=group, Name=id)
    assert end["ScheduleExpression"] == f"at({fresh.fuse + AFTER:%Y-%m-%dT%H:%M:%S})"
    script = base64.b64decode(asked[0]["UserData"]).decode()
    assert PUBLIC.strip() in script
    assert "shutdown -h +300" in script
    assert "IamInstanceProfile.Name" not in asked[0]  # workers ask AWS nothing
    pool.look(now())
    assert (pool.missing, len(pool.ready)) == (0, 3)


def test_hosts_with_a_notice_and_silent_ones_go_and_others_come(pool):
    first, second = (host.id for host in pool.hosts[1:])
    (pool._notices).write_text(f"i-other\n{first}\n")
    pool.look(now())
    assert (pool.going, pool.noticed, pool.missing) == ((first,), (first,), 1)
    pool._reachable = lambda host: host.id != second
    pool.look(now())
    assert pool.going == (first,)  # the other may answer again
    assert [host.id for host in pool.ready] == [pool.hosts[0].id]  # and has no part in a start
    pool.look(now() + timedelta(seconds=61))
    assert (pool.going, pool.missing) == ((first, second), 2)
    pool.drop(pool.going)
    pool.look(now())
    assert (pool.going, pool.missing) == ((), 2)
    assert len(pool.launch(now())) == 2
    assert len(pool.prepared()) == 3


def test_a_host_that_is_not_set_up_takes_no_part_and_goes_where_that_fails(pool, cloud):
    lose(cloud, pool)
    pool.look(now())
    setup = Future()
    pool._background = lambda act: setup
    (id,) = pool.launch(now())
    pool._reachable = lambda host: host.id != id  # it boots
    for minute in range(5):
        pool.look(now() + timedelta(minutes=minute))
        assert (pool.going, pool.missing, len(pool.ready)) == ((), 0, 2)
        assert not pool.prepared()
    again = HostPool(pool._run, pool._settled.parent, PUBLIC, pool._site, lambda host: True)
    again.look(now())
    assert again.going == (id,)  # a supervisor that is started anew knows of no setup
    setup.set_exception(RemoteError("install failed"))
    with pytest.raises(RemoteError, match="install failed"):
        pool.prepared()
    pool.look(now())
    assert (pool.going, pool.missing) == ((id,), 1)
    pool.drop(pool.going)
    pool.look(now())
    assert (pool.going, pool.missing, len(pool.ready)) == ((), 1, 2)


def test_a_setup_that_fails_as_another_host_goes_is_tried_again(pool, cloud, monkeypatch):
    lose(cloud, pool)
    pool.look(now())
    introduced = []

    def bootstrap(site, steps, fresh):
        introduced.append([host.id for host in steps._hosts])
        if len(introduced) == 1:
            pool._reachable = lambda host: host.id != old
            raise RemoteError("join failed")

    old = pool.hosts[1].id
    monkeypatch.setattr("atomo_cluster.ec2.supervisor.host_pool.bootstrap", bootstrap)
    (id,) = pool.launch(now())
    assert len(pool.prepared()) == 3
    assert introduced == [[pool.hosts[0].id, old, id], [pool.hosts[0].id, id]]


def test_money_counts_hosts_that_have_ended_and_no_host_is_launched_beyond_it(pool, cloud):
    lose(cloud, pool)
    later = now() + timedelta(hours=2)
    spent = pool.bill(later)
    assert spent.usd == pytest.approx(4 * (HOUR + 0.005), rel=0.05)  # and a moment of the third
    assert spent.usd_per_hour == pytest.approx(2 * (HOUR + 0.005), rel=0.01)
    cloud.on("DescribeInstances", refusal("RequestLimitExceeded"), times=20)
    assert pool.bill(later).usd == spent.usd  # as stored
    cloud.acts.clear()
    pool._run.__dict__["cluster"] = Cluster(**{**vars(pool._run.cluster), "max_usd": 2.0})
    pool.look(now())
    with pytest.raises(NotReady, match=r"may cost \$2\.\d+ until the fuse, and max_usd is \$2"):
        pool.launch(now())


def test_what_the_master_made_is_gone_where_aws_refuses_half_way(pool, cloud):
    lose(cloud, pool)
    pool.look(now())
    before = everything(cloud)
    cloud.on("RunInstances", refusal("InsufficientInstanceCapacity"), times=9)
    with pytest.raises(CloudError, match="InsufficientInstanceCapacity"):
        pool.launch(now())
    assert everything(cloud) == before
    pool.look(now())
    assert (pool.going, pool.missing) == ((), 1)


def test_all_hosts_end_the_master_last(pool, cloud):
    asked = []
    cloud.on("TerminateInstances", lambda words, forward: asked.append(words))
    pool.end(("worker", "master"))
    assert asked[0]["InstanceId.3"] == pool.hosts[0].id
    assert not everything(cloud)["instances"]


def test_the_profile_comes_and_goes_with_the_cluster(pool, cloud, ec2):
    iam = cloud.moto.client("iam")
    (profile,) = iam.list_instance_profiles()["InstanceProfiles"]
    (role,) = profile["Roles"]
    (name,) = iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]
    document = iam.get_role_policy(RoleName=role["RoleName"], PolicyName=name)["PolicyDocument"]
    scope = PolicyScope(pool._run.cluster, "123456789012", "user/moto")
    assert (
        document["Statement"][2:5] == json.loads(json.dumps(master_policy(scope)))["Statement"][2:5]
    )
    described = iam.get_role(RoleName=role["RoleName"])["Role"]
    assert described["PermissionsBoundary"]["PermissionsBoundaryArn"] == scope.boundary
    assert "instance-profile" in ec2("status").out
    assert ec2("shutdown", "--yes").code == 0
    assert not iam.list_instance_profiles()["InstanceProfiles"]
    assert not iam.list_roles()["Roles"]


def test_the_profile_goes_with_a_launch_that_fails(ec2, cloud):
    cloud.on("RunInstances", refusal("VcpuLimitExceeded"))
    words = ("--supervise", "yes", "--master-method", "on-demand")
    assert ec2("launch", "--yes", *words).code == 10
    iam = cloud.moto.client("iam")
    assert not iam.list_instance_profiles()["InstanceProfiles"]
    assert not iam.list_roles()["Roles"]


def test_the_fuse_of_the_master_is_the_earlier_of_its_tag_and_its_disk(pool, monkeypatch):
    tag = pool.master().fuse
    for deadline in (tag - timedelta(hours=3), tag + timedelta(hours=12), None):
        monkeypatch.setattr("atomo_cluster.ec2.supervisor.host_pool.local_deadline",
                            lambda deadline=deadline: deadline)  # fmt: skip
        assert pool.master().fuse == min(deadline or tag, tag)
