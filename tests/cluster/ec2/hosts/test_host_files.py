"""Hosts of one's own: names, ports and addresses of either kind."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from atomo_cluster.ec2.cli import COMMANDS, ON_OWN_HOSTS, main, options, parser
from atomo_cluster.ec2.commands import module_of
from atomo_cluster.ec2.hosts.host_keys import HostKeys
from atomo_cluster.ec2.hosts.setup import SetupContext, connections
from atomo_cluster.ec2.hosts.ssh import UNREACHED, Answer, Ssh
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.targets.selection import hosts_in_file
from atomo_cluster.errors import ConfigError


def hosts(folder, text):
    (folder / "machines").write_text(text)
    return hosts_in_file(folder / "machines")


def test_hosts_by_name_port_and_address(tmp_path):
    found = hosts(
        tmp_path, "one # the master\n10.0.0.2:2222\n2001:db8::3\n[2001:db8::4]\n[::5]:23\n"
    )
    assert [(host.address, host.port) for host in found] == [
        ("one", 22), ("10.0.0.2", 2222), ("2001:db8::3", 22), ("2001:db8::4", 22), ("::5", 23),
    ]  # fmt: skip
    # Among themselves: MPI splits words at colons.
    assert [host.inside for host in found] == [
        "one", *(f"deeplearning-worker{number}" for number in (2, 3, 4, 5)),
    ]  # fmt: skip


def test_hosts_find_each_other_by_these_names(tmp_path):
    found = hosts(tmp_path, "one\n2001:db8::3\n[::5]:23\n")
    ssh = Ssh("me", None, tmp_path / "known_hosts")
    site = SetupContext(
        Cluster(), ssh, HostKeys(ssh, lambda host: set()), tuple(found), b"", False, 0.0
    )
    text = connections(site)["ssh_config"]
    assert re.findall(r"Host (.*)\n  HostName (.*)\n  Port (.*)\n", text) == [
        ("one deeplearning-worker1", "one", "22"),
        ("deeplearning-worker2", "2001:db8::3", "22"),
        ("deeplearning-worker3", "::5", "23"),
    ]


@pytest.mark.parametrize("line", ["12:30:45", "[::g]", "[10.0.0.1]:22", "a/b", "::1]:22"])
def test_what_is_no_host_is_named(tmp_path, line):
    with pytest.raises(ConfigError, match=re.escape(repr(line))):
        hosts(tmp_path, line)


@pytest.mark.parametrize("told", ["Permission denied (publickey).", "connect: timed out"])
def test_what_to_do_about_a_host_of_ones_own_is_no_advice_about_ec2(tmp_path, told):
    (own,) = hosts(tmp_path, "one\n")
    launched = replace(own, own=False)
    advice = [Answer(host, UNREACHED, "", told).complaint() for host in (own, launched)]
    assert [re.findall("`launch`|key_name", one) != [] for one in advice] == [False, True]
    assert re.search("--hostfile|--ssh-username", advice[0])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        hosts_in_file(Path(tmp_path / "none"))


def test_commands_about_ec2_alone_say_so(capsys):
    for name in COMMANDS:
        known = options(parser(name, module_of(name)))
        assert ("--hostfile" in known) == (name in ON_OWN_HOSTS), name
    assert main(["resize", "--hostfile", "machines", "3"]) == 2
    output = capsys.readouterr().err
    assert "`resize` is about clusters of EC2 alone; --hostfile goes with bootstrap, st" in output
