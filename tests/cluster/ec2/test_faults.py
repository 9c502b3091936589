"""A call to AWS that fails: the command says so, and nothing runs that nobody was told of."""

import re

import pytest
from cluster.ec2.faults import COMMANDS, Case, in_page, outcome, ready

CASES = [
    Case("launch", "RunInstances", 2, "lost"),
    Case("launch", "ImportKeyPair", 1, "refused"),
    Case("shutdown", "TerminateInstances", 1, "refused"),
]


def test_the_page_has_what_these_commands_change():
    commands = {one for cells in in_page().values() for each in cells.values() for one in each}
    assert commands <= set(COMMANDS)
    changes = {"RunInstances", "TerminateInstances", "CreateSecurityGroup", "ImportKeyPair"}
    assert changes <= set(in_page())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.command}-{case.call}-{case.kind}")
def test_what_a_fault_comes_to_is_what_the_page_says(ec2, cloud, folder, case):
    (folder / "cluster.yaml").unlink()
    ready(ec2, cloud, folder, case.command)
    found = outcome(ec2, cloud, case)
    assert not found.untold
    assert case.command in in_page()[case.call][found.code]
    # What is overcome, as by asking once more, needs no name.
    said = "".join(word.capitalize() for word in re.split(r"[_\W]", found.said))
    assert found.code == 0 or case.call in said


@pytest.mark.slow
def test_hosts_that_nobody_was_told_of_are_seen(ec2, cloud, folder, monkeypatch):
    """A launch that does not clean up after a lost answer."""
    monkeypatch.setattr("atomo_cluster.ec2.lifecycle.roll_back", lambda *_: None)
    ready(ec2, cloud, folder, "launch")
    found = outcome(ec2, cloud, CASES[0])
    assert found.code == 10
    assert len(found.untold) == 3
