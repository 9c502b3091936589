"""`extend`: hosts move first and tags last, and what is shown is what the hosts have."""

import json

import pytest
from cluster.ec2.support.cloud import refusal
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.hosts.ssh import Answer

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
HOUR = 0.096 + 100 * 0.08 / 730 + 0.005
LEDGER = "state/test/hosts.json"
DENIED = refusal("UnauthorizedOperation")


class Fuses:
    """The deadlines of hosts, in seconds since 1970, as their fuses have them."""

    def __init__(self):
        self.deadlines, self.orders, self.faults = {}, [], {}

    def run(self, ssh, host, command, stdin=b"", timeout_s=None):
        if command.startswith("cat "):
            code = 255 if self.faults.get(host.id) == "silent" else 0
            return Answer(host, code, f"{self.deadlines.get(host.id, '')}\n", "")
        assert stdin == (SCRIPTS / "extend.sh").read_bytes()
        assert timeout_s
        self.orders.append(host.id)
        fault = self.faults.get(host.id, "")
        if fault in ("", "lost", "silent after"):
            self.deadlines[host.id] = int(command.rpartition(" ")[2])
        if fault == "interrupt":
            self.faults.clear()
            raise KeyboardInterrupt
        codes = {"refused": 1, "lost": 255, "silent": 255}
        return Answer(host, codes.get(fault, 0), "", "no sudo")


@pytest.fixture
def fuses(ec2, cloud, monkeypatch):
    """Returns the fuses of a master and two workers, of eight hours."""
    cloud.prices = PRICES
    made = Fuses()
    monkeypatch.setattr("atomo_cluster.ec2.hosts.ssh.Ssh.run", lambda *a, **k: made.run(*a, **k))
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.HostKeys.pin", lambda *_: "key")
    for role in ("master", "worker", "worker"):
        start(cloud, role)
    made.ids = [host["id"] for host in ec2("status", "--json").record["hosts"]]
    return made


def shown_h(ec2):
    """Returns the hours of the fuses that `status` shows, by host."""
    hosts = ec2("status", "--json").record["hosts"]
    return {host["id"]: round(host["max_hours"], 1) for host in hosts}


def test_the_cost_is_shown_before_the_question(ec2, fuses):
    declined = ec2("extend", "9.9", answer="no\n")
    assert declined.code == 13
    assert "at most $3.36 until the fuses, past costs included; now it is $2.72" in declined.out
    assert "Move the fuses? [y/N]" in declined.err
    dear = ec2("extend", "9.9", "--max-usd", "3.3", "--yes")
    assert dear.code == 12
    assert "the cluster may cost $3.36 until its fuses" in dear.err
    assert ec2("extend", "9.9", "--dry-run").code == 0
    assert not fuses.orders
    assert ec2("extend", "9.9", answer="yes\n").code == 0
    assert set(shown_h(ec2).values()) == {9.9}


def test_an_earlier_fuse_is_refused_before_anything_moves(ec2, fuses, cloud):
    earlier = ec2("extend", "1", "--yes")
    assert earlier.code == 2
    assert "all fuses are later already, the first at " in earlier.err
    assert not fuses.orders
    assert "CreateTags" not in cloud.calls


def test_a_host_that_fails_keeps_its_tag_and_a_smaller_move_is_allowed(ec2, fuses):
    fuses.faults = {fuses.ids[1]: "refused"}
    failed = ec2("extend", "20", "--yes", "--json")
    assert failed.code == 11
    assert "failed on 1 of 3 hosts: deeplearning-worker" in failed.err
    assert ": exit code 1: no sudo" in failed.err
    assert f"{fuses.ids[1]}: its fuse stays at " in failed.err  # stdout has the document
    expected = {id: 8.0 if id == fuses.ids[1] else 20.0 for id in fuses.ids}
    assert {one["id"]: round(one["max_hours"], 1) for one in failed.record["records"]} == expected
    assert shown_h(ec2) == expected
    fuses.faults.clear()
    smaller = ec2("extend", "12", "--yes")
    assert smaller.code == 0, smaller.err
    assert f"{fuses.ids[0]} master: keeps its fuse at " in smaller.out
    assert shown_h(ec2) == expected | {fuses.ids[1]: 12.0}


def test_an_order_whose_answer_was_lost_counts_if_the_host_has_it(ec2, fuses):
    fuses.faults = {fuses.ids[0]: "lost", fuses.ids[2]: "silent"}
    done = ec2("extend", "20", "--yes")
    assert done.code == 11
    assert f"{fuses.ids[2]} does not answer: it ends at " in done.out
    assert shown_h(ec2) == dict(zip(fuses.ids, (20.0, 20.0, 8.0), strict=True))


def test_a_fuse_whose_tag_is_refused_moves_back(ec2, fuses, cloud):
    ec2("extend", "9", "--yes")
    before = dict(fuses.deadlines)
    cloud.on("CreateTags", lambda *_: None)
    cloud.on("CreateTags", DENIED)
    refused = ec2("extend", "20", "--yes")
    assert refused.code == 10
    assert "ec2.create_tags: UnauthorizedOperation" in refused.err
    first, second, third = fuses.ids
    assert f"{second}: its fuse is back at " in refused.out
    assert fuses.deadlines[second] == before[second]
    assert shown_h(ec2) == {first: 20.0, second: 9.0, third: 20.0}


def test_a_fuse_that_does_not_move_back_is_named(ec2, fuses, cloud, monkeypatch):
    cloud.on("CreateTags", DENIED, times=3)
    answer, last = fuses.run, fuses.ids[2]

    def run(ssh, host, command, stdin=b"", timeout_s=None):
        if host.id == last and last in fuses.orders:
            return Answer(host, 255, "", "no route")
        return answer(ssh, host, command, stdin, timeout_s)

    monkeypatch.setattr(fuses, "run", run)
    refused = ec2("extend", "20", "--yes")
    assert refused.code == 10
    assert f"{last} RUNS UNTIL " in refused.out
    assert set(shown_h(ec2).values()) == {8.0}


def test_an_interrupt_moves_the_fuses_back(ec2, fuses, cloud):
    ec2("extend", "9", "--yes")
    before = dict(fuses.deadlines)
    fuses.faults = {fuses.ids[1]: "interrupt"}
    assert ec2("extend", "20", "--yes").code == 130
    assert fuses.deadlines == before

    def cut_off(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("atomo_cluster.ec2.commands.clusters.extend.tag_hours", cut_off)
        stopped = ec2("extend", "20", "--yes")
    assert stopped.code == 130
    assert stopped.out.count("its fuse is back at ") == 3
    assert fuses.deadlines == before
    assert set(shown_h(ec2).values()) == {9.0}


def test_nothing_that_has_moved_a_fuse_ends_with_2(ec2, fuses, folder):
    (folder / LEDGER).parent.mkdir(parents=True)
    (folder / LEDGER).write_text("{")
    done = ec2("extend", "20", "--yes")
    assert done.code == 0
    assert "past costs are unknown: " in done.out
    assert "not written down: " in done.out
    assert set(shown_h(ec2).values()) == {20.0}


def test_the_ledger_has_the_fuses_of_the_hosts(ec2, fuses, folder):
    assert ec2("cost").code == 0
    done = ec2("extend", "9.9", "--yes", "--json")
    ends = {one["id"]: one["until"] for one in json.loads((folder / LEDGER).read_text())}
    assert ends == {host["id"]: host["fuse"].replace(" ", "T") for host in done.record}
