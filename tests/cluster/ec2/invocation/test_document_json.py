"""The JSON document of every command: a script gets exactly one, even if the command fails."""

import json

import pytest
from cluster.ec2.support.cloud import everything, refusal

from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.errors import RemoteError

pytestmark = pytest.mark.slow

COMMANDS = [
    ("plan", 0),
    ("validate", 0),
    ("validate --worker-type m5.lrge", 12),
    ("plan --worker-type m5.lrge", 2),
    ("plan --n-worker 3", 2),
    ("launch", 13),
    ("launch --dry-run", 0),
    ("launch --yes", 0),
    ("status", 0),
    ("cost", 0),
    ("list_running_instances", 0),
    ("clean_launch_and_run --dry-run", 0),
    ("shutdown --dry-run", 0),
    ("shutdown", 13),
    ("shutdown --yes", 0),
    ("get_hosts", 10),
]


@pytest.mark.long
def test_every_command_prints_one_document(ec2, cloud):
    for line, code in COMMANDS:
        done = ec2(*line.split(), "--json")
        assert done.code == code, (line, done.err)
        record = json.loads(done.out)  # fails unless there is exactly one document
        if code in (2, 10, 13):
            assert record["exit_code"] == code
            assert record["error"] in done.err


def test_both_halves_of_a_rehearsal_are_in_it(ec2, cloud):
    assert ec2("launch", "--yes").code == 0
    calls = ec2("clean_launch_and_run", "--dry-run", "--json").record["dry_run"]
    assert {"ec2.terminate_instances", "ec2.run_instances (worker)"} <= set(calls)


def test_a_failure_of_aws_is_a_document_too(ec2, cloud):
    cloud.on("DescribeInstances", refusal("UnauthorizedOperation", "You may not"), times=9)
    record = ec2("status", "--json").record
    assert record["exit_code"] == 10
    assert "UnauthorizedOperation" in record["error"]


def fails(document, told, error):
    with document.printed():
        for record in told:
            document.tell(record)
        raise error


@pytest.mark.parametrize(
    ("told", "whole"),
    [
        ([None], {}),
        ([{"hosts": [1]}], {"hosts": [1]}),
        ([{"exit_code": 0}], {}),
        ([[{"host": "a"}]], {"records": [{"host": "a"}]}),
    ],
)
@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (RemoteError("h2 is silent"), "h2 is silent", 11),
        (KeyboardInterrupt(), "interrupted", 130),
        (KeyError("id"), "KeyError: 'id'", 1),
    ],
)
def test_the_document_of_a_failure_has_its_error_whatever_was_told(
    capsys, told, whole, error, text, code
):
    document = Document(enabled=True)
    with pytest.raises(type(error)):
        fails(document, told, error)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {**whole, "error": text, "exit_code": code}


def test_a_command_that_ends_with_a_code_of_its_own_has_it_in_the_document(ec2, monkeypatch):
    monkeypatch.setattr("atomo_cluster.ec2.commands.planning.init.run", lambda run: 6)
    done = ec2("init", "--json")
    assert done.code == 6
    assert done.record == {"error": "`init` ended with code 6", "exit_code": 6}


@pytest.mark.parametrize("command", ["launch --yes", "bootstrap", "run_command all true"])
def test_a_bad_state_dir_is_found_before_any_call(ec2, cloud, folder, command):
    (folder / "file").write_text("")
    done = ec2(*command.split(), "--state-dir", str(folder / "file" / "state"))
    assert done.code == 2
    assert f"state_dir {folder}/file/state: " in done.err
    assert "choose another" in done.err
    assert not cloud.calls


def test_a_bad_state_dir_keeps_no_cluster_alive(ec2, cloud, folder):
    assert ec2("launch", "--yes").code == 0
    (folder / "file").write_text("")
    assert ec2("shutdown", "--yes", "--state-dir", str(folder / "file" / "state")).code == 0
    assert not everything(cloud)["instances"]
