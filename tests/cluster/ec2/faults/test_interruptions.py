"""Ctrl-C at every call to AWS: a command says where it stopped, which hosts live and what they
cost, and the command that finishes; it ends with 130, or with 14 if a roll-back was cut off.
"""

import re
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest
from cluster.ec2.faults.rig import patches, ready
from cluster.ec2.faults.saved import saved
from cluster.ec2.support.cloud import everything

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.cli import COMMANDS as VERBS
from atomo_cluster.ec2.targets.interruption import SILENT

pytestmark = pytest.mark.long


class Interruption:
    """Raises KeyboardInterrupt before or after a call to AWS; counts the calls."""

    def __init__(self, at=None, after=False):
        self.calls, self.at, self.after = 0, at, after

    @contextmanager
    def applied(self):
        guarded, numbers = Aws._guarded, count()

        def cut(aws, action, call, arguments):
            number = next(numbers)  # some calls are made by threads
            self.calls = number + 1
            if number == self.at and not self.after:
                raise KeyboardInterrupt
            try:
                return guarded(aws, action, call, arguments)
            finally:  # also of a call that AWS refuses
                if number == self.at:
                    raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Aws, "_guarded", cut)
            yield self


@pytest.fixture
def interrupted(ec2, cloud, folder):
    """Returns a function that interrupts a command, and one that counts its moments."""
    (folder / "cluster.yaml").unlink()
    states = {}

    def prepare(use):
        if use in states:
            states[use].restore()
        else:
            ready(ec2, cloud, folder, use)
            states[use] = stack.enter_context(saved(cloud, folder))

    def run(use, words, at=None, after=False):
        prepare(use)
        with Interruption(at, after).applied() as seen:
            done = ec2(*words)
        return done, seen.calls

    with patches(folder), ExitStack() as stack:
        yield run


def check_report(done, cloud, command):
    """Checks the report of an interrupted command against the account."""
    assert done.code in (130, 14), done.err
    assert f"INTERRUPTED: `{command}` stopped" in done.err
    alive = everything(cloud)["instances"]
    for host in alive:
        assert host in done.err
    if alive:
        count = re.escape(f"{len(alive)} host{'s are' if len(alive) > 1 else ' is'} alive")
        assert re.search(rf"{count} in us-east-1, at \$0\.\d+ per hour: ", done.err)
    else:
        assert "no host of test is alive in us-east-1" in done.err
    assert "`shutdown`" in done.err
    return len(alive)


@pytest.mark.parametrize(
    ("use", "words"),
    [("launch", ("launch", "--yes")), ("shutdown", ("shutdown", "--yes")),
     ("shutdown (spot)", ("shutdown", "--yes")), ("extend", ("extend", "8.9", "--yes")),
     ("stop_hosts", ("stop_hosts", "--yes")), ("resize (fewer)", ("resize", "1", "--yes"))],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
@pytest.mark.long
def test_every_moment_of_a_command_is_reported(interrupted, cloud, use, words):
    whole, moments = interrupted(use, words)
    assert whole.code == 0, whole.err
    with_hosts = 0
    for moment in range(2 * moments):
        done, _ = interrupted(use, words, moment // 2, after=bool(moment % 2))
        with_hosts += bool(check_report(done, cloud, words[0]))
    assert with_hosts or use == "launch"


def test_two_moments_of_a_shutdown_are_reported(interrupted, cloud):
    words = ("shutdown", "--yes")
    moments = interrupted("shutdown", words)[1]
    for moment, alive in ((5, 3), (moments - 1, 0)):
        done, _ = interrupted("shutdown", words, moment)
        assert check_report(done, cloud, "shutdown") == alive


def test_the_report_names_the_call_and_what_to_do(interrupted, cloud):
    done, _ = interrupted("status", ("status",), at=4)
    assert "INTERRUPTED: `status` stopped during ec2.describe_instances" in done.err
    assert "`status` again goes on, `shutdown` ends all" in done.err
    assert check_report(done, cloud, "status") == 3


def test_a_second_interrupt_ends_the_report(interrupted, cloud, monkeypatch):
    def cut(run):
        raise KeyboardInterrupt

    monkeypatch.setattr("atomo_cluster.ec2.targets.interruption.host_lines", cut)
    done, _ = interrupted("shutdown", ("shutdown", "--yes"), at=3)
    assert done.code == 130
    assert "hosts may run, and cost: `status` shows them, `shutdown` ends them" in done.err


def test_commands_that_report_nothing_have_nothing_to_report():
    assert set(VERBS) > SILENT
    assert not SILENT & {"launch", "shutdown", "extend", "train", "status", "stop_hosts"}
