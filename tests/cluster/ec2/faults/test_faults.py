"""A call to AWS that fails: the command reports the failure, and names every resource that runs."""

import re

import pytest
from cluster.ec2.faults.inject import Case, Outcome, named, outcome
from cluster.ec2.faults.inject import command as inject_command
from cluster.ec2.faults.neighbours import Neighbours
from cluster.ec2.faults.page import BEGIN, PAGE, has, in_page, page_of
from cluster.ec2.faults.rig import COMMANDS, patches, ready, running
from cluster.ec2.faults.saved import saved
from cluster.ec2.faults.supervised import is_started, now
from cluster.ec2.support.cloud import refusal
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.cli import COMMANDS as VERBS
from atomo_cluster.ec2.supervisor.event_log import LOST, STARTED, EventLog

pytestmark = pytest.mark.long

CASES = [
    Case("launch", "RunInstances", 2, "lost"),
    Case("launch", "ImportKeyPair", 1, "refused"),
    Case("shutdown", "TerminateInstances", 1, "refused"),
]
ASK_NOTHING = {"init"}


def test_every_command_that_asks_aws_is_tried():
    assert {name.split()[0] for name in COMMANDS} == set(VERBS) - ASK_NOTHING


def test_the_page_has_every_command():
    text = PAGE.read_text()
    assert text.count(BEGIN) == 1
    assert len(re.findall(r"(?m)^\| call \|", text)) == 1
    verbs = {name.split()[0] for name in COMMANDS}
    assert f" faults in {len(COMMANDS)} uses of {len(verbs)} commands." in text


def test_the_page_has_what_these_commands_change():
    changes = {"RunInstances", "TerminateInstances", "CreateSecurityGroup", "ImportKeyPair"}
    assert changes <= set(in_page())


def test_a_fault_after_the_start_of_a_job_is_no_defect(tmp_path):
    """On a slow machine the last of many calls comes later in the night."""
    story = EventLog(tmp_path / "story.jsonl", now)
    story.tell(STARTED, "the job starts on 3 hosts")
    story.note("ec2.describe_instances: UnauthorizedOperation; asked again")
    assert is_started(story)
    story.tell(LOST, "gone: i-1")
    assert not is_started(story)


def test_no_page_is_made_of_defects(monkeypatch, capsys):
    case = Case("supervise", "DescribeInstances", 14, "refused")
    result = Outcome(1, frozenset(), 0.0, 1.0, "the job starts", names=True)
    monkeypatch.setattr("cluster.ec2.faults.inject.run", lambda *_: [(case, result)])
    assert inject_command(["supervise", "--write"]) == 1
    assert "1 of 1 faults have a wrong outcome" in capsys.readouterr().err
    assert "A DEFECT: the job starts" in result.wrong


def test_a_saved_account_is_the_same_again(cloud, tmp_path):
    neighbours = Neighbours.launch(cloud)
    (tmp_path / "ledger").write_text("one")
    cloud.console = "booted"
    with saved(cloud, tmp_path) as state:
        for _ in range(2):
            for client in neighbours.clients.values():
                ids = [host["InstanceId"] for host in running(client)]
                client.terminate_instances(InstanceIds=ids)
            (tmp_path / "ledger").unlink()
            (tmp_path / "other").mkdir()
            cloud.console = "gone"
            assert len(neighbours.touched()) == 2
            state.restore()
            assert not neighbours.touched()
            assert [path.name for path in tmp_path.iterdir()] == ["ledger"]
            assert cloud.console == "booted"
    assert not neighbours.touched()


def test_a_host_of_another_place_that_ends_is_seen(cloud):
    neighbours = Neighbours.launch(cloud)
    assert not neighbours.touched()
    for place, client in neighbours.clients.items():
        batches = client.describe_instances()["Reservations"]
        client.terminate_instances(InstanceIds=[batches[0]["Instances"][0]["InstanceId"]])
        assert place in neighbours.touched()
    assert not running(cloud.moto.client())


def test_a_table_has_each_command_once_where_it_belongs():
    seen = [(name, "GetRole", 10) for name in ("plan", "cost", "jobs", "logs", "stop")]
    seen += [("status", "GetRole", 0), ("plan", "GetUser", 10)]
    text = page_of(seen)
    assert "| GetRole | `status` | all that ask but `status` |" in text
    assert "| GetUser |  | `plan` |" in text
    cells = ("`status`", "all that ask but `status`")
    assert [has(cell, "status") for cell in cells] == [True, False]
    assert [has(cell, "jobs") for cell in cells] == [False, True]


@pytest.fixture
def tried(ec2, cloud, folder):
    """Returns a function that tries one fault."""
    (folder / "cluster.yaml").unlink()

    def once(case):
        neighbours = ready(ec2, cloud, folder, case.command)
        return outcome(ec2, cloud, folder, neighbours, case)

    with patches(folder):
        yield once


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.command}-{case.call}-{case.kind}")
def test_what_a_fault_comes_to_is_what_the_page_says(tried, case):
    found = tried(case)
    assert not found.wrong
    assert has(in_page()[case.call][found.code], case.command)


@pytest.mark.long
def test_hosts_that_nobody_was_told_of_are_seen(tried, monkeypatch):
    """A launch that does not clean up after a lost answer."""
    monkeypatch.setattr("atomo_cluster.ec2.launch.launching.roll_back", lambda *_: None)
    found = tried(CASES[0])
    assert found.code == 10
    assert len(found.untold) == 3
    assert "NOT TOLD OF" in found.wrong


def test_status_shows_the_hosts_whatever_else_aws_refuses(ec2, cloud):
    id = start(cloud, "master")
    cloud.on("DescribeTags", refusal("UnauthorizedOperation"))
    cloud.on("DescribeImages", refusal("UnauthorizedOperation"))
    done = ec2("status", "--json")
    assert done.code == 10
    assert [host["id"] for host in done.record["hosts"]] == [id]
    assert len(done.record["unsaid"]) == 2
    assert "AWS does not say all: ec2.describe_images" in done.err


def test_a_wait_that_fails_names_the_call(ec2, cloud, folder):
    start(cloud, "master"), start(cloud, "worker"), start(cloud, "worker")
    cloud.on("DescribeInstances", lambda *_: None)
    cloud.on("DescribeInstances", refusal("UnauthorizedOperation"))
    done = ec2("resize", "1", "--yes")
    assert done.code == 14
    assert named("DescribeInstances", done.err)
    assert "(instance_terminated)" in done.err
