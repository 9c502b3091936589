"""Hosts that no longer answer are known, and a process of another host is killed there."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.jobs import alive, until

from atomo.launch.jobs import ssh as reach
from atomo.launch.jobs.ssh import RemoteHosts, is_here, ssh_command
from atomo.transports.processes import ProcessId, is_stuck, started, status

# In the place of ssh: a host is a folder's file, which says how it answers; it is this machine.
SSH = """\
#!/bin/sh
folder=$1; host=$2; shift 2
[ -e "$folder/$host.silent" ] && exec sleep 1000
[ -e "$folder/$host" ] && exec sh -c "$*"
exit 255
"""


@pytest.fixture
def ssh(tmp_path: Path) -> list[str]:
    script = tmp_path / "ssh"
    script.write_text(SSH)
    script.chmod(0o755)
    return [str(script), str(tmp_path)]


@pytest.mark.slow
def test_hosts_that_answered_before_and_do_not_now_are_lost(ssh, tmp_path, monkeypatch):
    for name in ("stays", "refuses", "silent"):
        (tmp_path / name).touch()
    names = ["stays", "refuses", "silent", "never", "localhost"]
    remote_hosts = RemoteHosts(names, ssh)
    until(
        lambda: all(probe.poll() is not None for probe in remote_hosts._first.values()),
        "first answers",
    )
    assert remote_hosts.lost() == frozenset()
    (tmp_path / "refuses").unlink()
    (tmp_path / "silent.silent").touch()
    assert remote_hosts.lost() == {"refuses", "silent"}
    for name in ("stays", "refuses"):
        (tmp_path / f"{name}.silent").touch()
    monkeypatch.setattr(reach, "PATIENCE_S", 0.2)
    assert remote_hosts.lost() == {"stays", "refuses", "silent"}  # of "never" nothing is known
    for name in ("refuses", "stays", "silent"):
        (tmp_path / name).touch()
        (tmp_path / f"{name}.silent").unlink()
    monkeypatch.setattr(reach, "PATIENCE_S", 60.0)
    monkeypatch.setattr(reach, "LEAST_S", 60.0)
    assert remote_hosts.lost() == frozenset()  # they are back
    remote_hosts.close()


def has_state(pid: int, state: str) -> bool:
    return status(pid)[0] == state


def test_a_stopped_process_of_another_host_is_killed_and_a_stranger_is_not(ssh, tmp_path):
    (tmp_path / "other").touch()
    remote_hosts = RemoteHosts([], ssh)
    for host in ("other", "localhost"):
        process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        since = started(process.pid)
        process_id = ProcessId(process.pid, since)
        until(partial(has_state, process_id.pid, "S"), "it to wait for a word")
        assert not is_stuck(process_id)
        remote_hosts.kill(host, process.pid, since, if_stuck=True)
        until(lambda: remote_hosts._kills[-1].poll() is not None, "the command to end")
        assert alive(process.pid)
        process.send_signal(19)
        until(partial(is_stuck, process_id), "it to stop")
        remote_hosts.kill(host, process.pid, since + 1)  # the number's earlier owner
        until(lambda: remote_hosts._kills[-1].poll() is not None, "the command to end")
        assert alive(process.pid)
        remote_hosts.kill(host, process.pid, since, if_stuck=True)
        assert process.wait() == -9
        assert process.stdin is not None
        process.stdin.close()
    remote_hosts.close()


def test_hosts_are_reached_as_mpirun_reaches_them(monkeypatch):
    monkeypatch.delenv("PRTE_MCA_plm_ssh_agent", raising=False)
    assert ssh_command([]) == ["ssh"]
    assert ssh_command(["--prtemca", "plm_ssh_agent", "ssh -F conf"]) == ["ssh", "-F", "conf"]
    assert ssh_command(["--mca", "plm_rsh_agent", "ssh : rsh"]) == ["ssh"]
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", "rsh -x")
    assert ssh_command(["--mca", "btl", "tcp"]) == ["rsh", "-x"]


def test_this_host_is_known_by_its_addresses():
    assert is_here("127.0.0.1")
    assert is_here("me@localhost")
    assert not is_here("192.0.2.1")  # which nobody has
