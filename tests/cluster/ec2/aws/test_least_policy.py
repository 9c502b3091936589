"""Every command passes with the policy that `iam` prints for it, and no statement is idle.

The policies stand before the emulator, as IAM's would.
"""

import json
import shlex
from itertools import pairwise

import pytest
from cluster.ec2.faults.rig import COMMANDS, KEPT, Tried, patches, prepare, store
from cluster.ec2.faults.supervised import night
from cluster.ec2.support.cloud import refusal
from cluster.ec2.support.iam_gate import Gate
from cluster.ec2.support.iam_policy import ALLOWED, decision
from support.selection import long_but

from atomo_cluster.ec2.aws.policy import COMMANDS as NEEDS
from atomo_cluster.ec2.aws.policy import OPTIONAL
from atomo_cluster.ec2.cli import COMMANDS as VERBS
from atomo_cluster.ec2.settings.cluster import Cluster

FLAGS = {f"--{name.replace('_', '-')}" for name in Cluster.__dataclass_fields__}
SETTINGS = (*KEPT, "--connect", "ssm", "--placement-group", "yes", "--worker-method", "spot",
            "--nfs-ip-address", "10.1.2.3", "--aws-end", "yes")  # fmt: skip
UP = (("launch", "--yes", *SETTINGS),)
# Uses of commands over a cluster that uses nearly everything.
USES = {
    "launch": Tried(("launch", "--yes")),
    "extend": Tried(("extend", "8.9", "--yes"), UP),
    "stop_hosts": Tried(("stop_hosts", "--yes", "--end-spot"), UP),
    "run_command": Tried(("run_command", "all", "true"), UP),
    "bake": Tried(("bake", "--yes"), UP),
    "delete_images": Tried(("delete_images", "--yes"), (*UP, ("bake", "--yes", *SETTINGS))),
    "fetch": Tried(("fetch",)),
    "validate": Tried(("validate",)),
    "iam": Tried(("iam", "--check")),
    "shutdown": Tried(("shutdown", "--yes"), UP),
}


@pytest.fixture
def gate(cloud):
    """Returns the gate before the emulator, which is open."""
    return Gate(cloud)


@pytest.fixture
def rig(ec2, cloud, folder, gate):
    """Returns a function that prepares the account for a command."""
    (folder / "cluster.yaml").unlink()

    def prepared(tried):
        prepare(cloud, folder)
        gate.account.spot_role = False
        gate.account.templates.clear()
        for words in tried.before:
            done = ec2(*words)
            assert done.code == 0, f"{words}: {done.out}{done.err}"
        gate.account.spot_role = False
        store(cloud, (*tried.words, *SETTINGS))

    with patches(folder, gate):
        yield prepared


def settings_of(words):
    """Returns the options of a command line that are settings."""
    return [word for flag, value in pairwise(words) if flag in FLAGS for word in (flag, value)]


def printed(ec2, *words):
    """Returns the policy that `iam` prints."""
    done = ec2("iam", *words)
    assert done.code == 0, done.err
    return json.loads(done.out)


def without(policy, name):
    """Returns a policy without a statement."""
    return policy | {"Statement": [one for one in policy["Statement"] if one["Sid"] != name]}


def test_the_policy_knows_every_command():
    assert set(NEEDS) == set(VERBS)


@pytest.mark.long
def test_a_look_into_all_regions_takes_the_policy_that_is_printed_for_it(rig, ec2, gate):
    """Checks a policy that `status` alone, bound to the regions of the settings, does not have."""
    use = Tried(("status", "--all-regions"))
    rig(use)
    with gate.only(printed(ec2, "--for", "status --all-regions")):
        assert ec2(*use.words).code == 0
    with gate.only(printed(ec2, "--for", "status")):
        done = ec2(*use.words)
    assert done.code == 10
    assert "`iam --for 'status --all-regions'` prints the rights" in done.err


LOOKS = {"iam:GetRole", "iam:GetInstanceProfile"}  # where settings make no roles, nobody needs them
# Of roles that an administrator makes: without them the role of ends by AWS stays.
ADMIN = {"iam:DeleteRole", "iam:DeleteRolePolicy"}
USED = [name for name in COMMANDS if not name.startswith("supervise")]
FEW = ["launch (spot)", "extend", "shutdown (supervised)"]


@pytest.mark.long
@pytest.mark.parametrize("use", long_but(FEW, USED))
def test_a_command_passes_with_the_policy_that_is_printed_for_it(
    use, rig, ec2, cloud, folder, gate
):
    tried = COMMANDS[use]
    rig(tried)
    words = [word for part in (*tried.before, tried.words) for word in settings_of(part)]
    policy = printed(ec2, "--for", tried.words[0], *words)
    if "iam:CreateRole" not in str(policy):
        make_end_role(ec2, cloud, *words)
    with gate.only(policy):
        done = ec2(*tried.words)
    unneeded = set() if "LookAtRoles" in str(policy) else LOOKS | ADMIN
    assert {one.action for one in gate.refused} <= unneeded
    assert done.code == 0, done.err
    assert "BY AWS" not in done.err


WATCHED = {"placement-group": "yes", "connect": "ssm", "worker-method": "spot"}
NOT_CALLED = {"ReadConsoles"}  # by the hosts of these tests, which let everybody in


@pytest.fixture
def supervisor(rig, ec2, cloud, folder, gate, monkeypatch):
    """Returns a function that lets a supervisor replace a worker and end all hosts: its exit code.

    It has the policy of the master's role, without a statement, within the boundary.
    """
    monkeypatch.setattr("atomo_cluster.ec2.supervisor.host_pool.run_commands", lambda *_: None)
    watched = [word for name, value in WATCHED.items() for word in (f"--{name}", value)]
    words = ("--supervise", "yes", *watched)
    settings = "".join(f"{name.replace('-', '_')}: {value}\n" for name, value in WATCHED.items())

    def run(removed=""):
        rig(Tried(("supervise",), (("launch", "--yes", *words),)))
        gate.account.spot_role = True  # the launch has made it
        iam = cloud.moto.client("iam")
        names = [one["RoleName"] for one in iam.list_roles()["Roles"]]
        (role,) = [name for name in names if not name.endswith(("-hosts", "-ends"))]
        document = iam.get_role_policy(RoleName=role, PolicyName="atomo")["PolicyDocument"]
        bound = printed(ec2, "--boundary", *words)
        given = (folder / "cluster.yaml").read_text()
        (folder / "cluster.yaml").write_text(f"{given}{settings}supervise: true\n")
        try:
            with gate.only(without(document, removed), boundary=bound):
                code = night(cloud, folder)[0]
                names = [one["Sid"] for one in document["Statement"]]
                ends = cloud.moto.client("scheduler").list_schedules()["Schedules"]
                return code or int(len(ends) < 4), names  # of three hosts, and of the new worker
        finally:
            (folder / "cluster.yaml").write_text(given)

    return run


END_VERBS = [("launch", "--yes"), ("extend", "8.9", "--yes"), ("stop_hosts", "--yes"),
             ("start_hosts", "--yes"), ("shutdown", "--yes")]  # fmt: skip


def make_end_role(ec2, cloud, *words):
    """Makes the role of ends by AWS as an administrator does: by the printed commands."""
    iam = cloud.moto.client("iam")
    there = {role["RoleName"] for role in iam.list_roles()["Roles"]}
    for line in ec2("iam", "--end-role", *words).out.splitlines():
        _, _, command, *options = shlex.split(line)
        values = {name.strip("-").title().replace("-", ""): value
                  for name, value in zip(options[::2], options[1::2], strict=True)}  # fmt: skip
        if command != "create-role" or values["RoleName"] not in there:
            getattr(iam, command.replace("-", "_"))(**values)


@pytest.mark.long
def test_ends_by_aws_pass_with_the_policy_and_each_of_their_statements_is_needed(
    rig, ec2, cloud, gate
):
    rig(Tried(()))
    for words in END_VERBS:
        policy = printed(ec2, "--for", words[0])
        if words[0] == "launch":
            make_end_role(ec2, cloud)
            for name in ("LookAtEndsScheduleEnds", "LookAtEndRole", "PassEndRole"):
                with gate.only(without(policy, name)):
                    lacking = ec2(*words)
                assert lacking.code == 0, lacking.err
                assert "WITHOUT AN END BY AWS" in lacking.err
                assert ec2("shutdown", "--yes").code == 0
                make_end_role(ec2, cloud)
        with gate.only(policy):
            done = ec2(*words)
        assert {one.action for one in gate.refused} <= LOOKS | ADMIN
        assert done.code == 0, done.err
        assert "BY AWS" not in done.err
        assert "may be left" not in done.out
    assert not cloud.moto.client("scheduler").list_schedules()["Schedules"]


@pytest.mark.long
def test_a_supervisor_passes_with_the_policy_of_the_masters_role(supervisor, gate):
    assert supervisor()[0] == 0
    assert {one.action for one in gate.refused} <= LOOKS
    (template,) = gate.account.templates.values()
    assert template["IamInstanceProfile"]["Name"].endswith("-hosts")  # as the first workers have


@pytest.mark.long
def test_the_masters_role_may_launch_on_demand_workers_where_there_are_no_others(
    supervisor, gate, monkeypatch
):
    spent = night

    def short(cloud, folder):
        cloud.on("CreateFleet", refusal("InsufficientInstanceCapacity", "We have none"), times=9)
        return spent(cloud, folder)

    monkeypatch.setattr(f"{__name__}.night", short)
    assert supervisor()[0] == 0
    assert {one.action for one in gate.refused} <= LOOKS


@pytest.mark.long
def test_no_statement_of_the_masters_policy_is_idle(supervisor):
    names = supervisor()[1]
    assert {name for name in names if supervisor(name)[0] == 0} == NOT_CALLED


# Without these statements a command goes on, and its output says what it does not know.
GOES_ON = {
    "Quotas": "unknown  quota: AWS does not say: service-quotas.list_service_quotas: AccessDenied",
    "SharedFolders": "shared folder: AWS does not say: efs.describe_file_systems: AccessDenied",
    "Simulate": "unknown because of iam.simulate_principal_policy: AccessDenied",
}
PINNED = " console"  # host keys that are pinned from consoles


@pytest.mark.long
def test_no_statement_of_the_policy_is_idle(rig, ec2, cloud, folder, gate, monkeypatch):
    """Each of them is removed in turn, and a command fails, or does not know what it asked for.

    The statements are those before equal ones merge.
    """
    monkeypatch.setattr("atomo_cluster.ec2.commands.planning.iam.compact", dict)

    def run(use, policy):
        rig(USES[use])
        for path in folder.glob("state/test/known_hosts"):
            path.unlink()
        with gate.only(policy):
            done = ec2(*USES[use].words, *SETTINGS)
        pinned = folder / "state/test/known_hosts"
        return done.code, done.out + done.err + (pinned.read_text() if pinned.exists() else "")

    prepare(cloud, folder)
    policy = printed(ec2, "--for", ",".join(USES), *SETTINGS)
    names = [one["Sid"] for one in policy["Statement"]]
    assert {"SpotRole", "AttachSessionManager", "MakeRoles", "PassRoles", "ReadResults"} <= set(
        names
    )
    needing = {name: [] for name in names}
    for use in USES:
        code, said = run(use, policy)
        assert code == 0, f"{use}: {said}"
        assert PINNED in said or use != "run_command"
        for name in names:
            rest = [without(policy, name)]
            if any(decision(rest, one) != ALLOWED for one in gate.asked):
                needing[name].append(use)
    idle = []
    for name, uses in needing.items():
        results = (run(use, without(policy, name)) for use in uses)
        if name == "ReadConsoles":
            failed = any(PINNED not in said for _, said in results)
        else:
            failed = any(
                GOES_ON[name] in said if name in GOES_ON else code for code, said in results
            )
        idle += [] if failed else [(name, uses)]
    assert not idle
    assert set(OPTIONAL) & set(names) == {*GOES_ON, "Prices"}
