"""Hosts as real ones: names, addresses, ssh, faults, and nothing left behind."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.virtual.vc import ROOT, SCRIPT, Tool, machine
from support.jobs import until

pytestmark = pytest.mark.slow

NO_SSHD = "#!/bin/sh\necho planted >&2\nexit 1\n"
STUCK_SSHD = "#!/bin/sh\nsleep 1000000\n"  # its words stay to be seen


def test_hosts_have_names_addresses_and_ssh_between_them(cluster):
    where = json.loads(cluster.does("status", "--json"))
    lines = Path(where["hosts_address"]).read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "10.77.0.1", "10.77.0.2", "10.77.0.3"
    ]  # fmt: skip
    assert cluster.does("exec", "h1", "hostname") == "h1"
    assert cluster.does("exec", "10.77.0.2", "hostname") == "h2"
    tell = 'hostname; getent hosts h1; id -u; echo "${SSH_CONNECTION%% *}"'
    output = cluster.does("exec", "h2", "ssh", "h3", tell).split()
    assert output == ["h3", "10.77.0.1", "h1", str(os.getuid()), "10.77.0.2"]
    by_address = cluster.does("exec", "h3", "ssh", "10.77.0.1", "hostname")
    assert by_address == "h1"
    done = subprocess.run(
        ["ssh", "-F", where["ssh_config"], "h2", "hostname; cat"],
        input="from outside", capture_output=True, text=True, check=False,
        env={**os.environ, **cluster.environment},
    )  # fmt: skip
    assert done.stdout == "h2\nfrom outside", done.stderr


def test_a_command_on_a_host_is_as_one_here(cluster, tmp_path):
    assert cluster.does("exec", "h1", "pwd") == str(ROOT)
    cluster.environment["ATOMO_TEST_SAYS"] = "a  b"
    assert cluster.does("exec", "h1", "--", "printenv", "ATOMO_TEST_SAYS") == "a  b"
    assert cluster("exec", "h1", "sh", "-c", "exit 7").returncode == 7
    assert cluster("exec", "h1", "sh", "-c", "kill -9 $$").returncode == 128 + 9
    missing = cluster("exec", "h1", "no-such-program")
    assert (missing.returncode, missing.stderr) == (
        127,
        "no-such-program: No such file or directory\n",
    )
    script = "trap 'exit 9' USR1; echo on; while :; do sleep 0.05; done"
    job = cluster.start(tmp_path / "log", "exec", "h2", "bash", "-c", script)
    try:
        job.says("on")
        assert cluster.host("h2")["processes"][0]["command"].endswith(script)
        job.process.send_signal(signal.SIGUSR1)
        assert job.ends() == 9
    finally:
        job.kill()


def test_hosts_share_files_but_neither_memory_nor_processes(cluster):
    shared = json.loads(cluster.does("status", "--json"))["shared"]
    cluster.does("exec", "h1", "sh", "-c", f"echo nfs >{shared}/x; echo ram >/dev/shm/atomo-vc")
    assert cluster.does("exec", "h2", "cat", f"{shared}/x") == "nfs"
    assert cluster("exec", "h2", "cat", "/dev/shm/atomo-vc").returncode == 1
    assert not Path("/dev/shm/atomo-vc").exists()
    assert cluster.does("exec", "h2", "cat", "/proc/1/cmdline").endswith("/virtual\0h2\0")
    Path(shared, "x").unlink()


def test_orphans_on_a_host_do_not_stay_as_zombies(cluster):
    cluster.does("exec", "h1", "sh", "-c", "setsid -f true")
    until(lambda: "Z" not in cluster.does("exec", "h1", "ps", "-eo", "stat="), "the orphan to go")


def test_a_pulled_cable_is_silent_and_can_be_put_back(cluster):
    probe = ("exec", "h1", "ssh", "-o", "ConnectTimeout=1", "h2", "hostname")
    cluster.does("partition", "h2")
    assert cluster.host("h2")["state"] == "partitioned"
    cut = cluster(*probe)
    assert cut.returncode == 255
    assert "timed out" in cut.stderr
    assert cluster.does("exec", "h2", "hostname") == "h2"  # its console is still there
    assert cluster.does("exec", "h1", "ssh", "h3", "hostname") == "h3"
    cluster.does("heal", "h2")
    assert cluster.host("h2")["state"] == "up"
    # The kernel may not have found out yet that there is no route.
    until(lambda: cluster(*probe).stdout.strip() == "h2", "the way to h2")


def test_limits_hold_on_both_ends_of_each_link(cluster):
    def rates(name: str) -> tuple[str, str, int]:
        """Returns the rates of the switch's and of the host's end, in bits per second."""
        output = cluster.does("exec", name, "tc", "-j", "qdisc", "show", "dev", "eth0")
        [limit] = json.loads(output)
        return cluster.host(name)["rate"], limit["kind"], 8 * limit["options"]["rate"]

    assert rates("h3") == ("1gbit", "tbf", 10**9)
    cluster.does("throttle", "h3", "2.5mbit")
    try:
        assert rates("h2") == ("1gbit", "tbf", 10**9)
        assert rates("h3") == ("2.5mbit", "tbf", 2_500_000)
    finally:
        cluster.does("throttle", "h3", "1gbit")


def test_bytes_are_counted_on_the_link_that_they_cross(cluster):
    before = {name: cluster.host(name) for name in ("h1", "h2", "h3")}
    cluster.does("exec", "h1", "sh", "-c", "head -c 4000000 /dev/urandom | ssh h2 'cat >/dev/null'")
    after = {name: cluster.host(name) for name in before}

    def moved(name: str, what: str) -> float:
        return (after[name][what] - before[name][what]) / 4e6

    assert 1 <= moved("h1", "sent_bytes") < 1.05
    assert moved("h2", "received_bytes") == pytest.approx(moved("h1", "sent_bytes"), rel=0.001)
    assert moved("h3", "sent_bytes") + moved("h3", "received_bytes") < 0.001


def test_killing_a_host_takes_what_runs_on_it(tool, tmp_path):
    tool.does("up", "--hosts", "2")
    job = tool.start(tmp_path / "log", "exec", "h2", "sh", "-c", "echo on; exec sleep 1000000")
    try:
        job.says("on")
        tool.does("kill", "h2")
        assert job.ends() == 128 + 9
    finally:
        job.kill()
    assert tool.host("h2")["state"] == "killed"
    assert tool.does("exec", "h1", "hostname") == "h1"
    for command in ("exec h2 true", "kill h2", "partition h2", "heal h2", "throttle h2 1mbit"):
        assert "h2 was killed; `down`, then `up`" in tool.refuses(*command.split())


def test_who_no_longer_reads_the_output_is_no_error(cluster):
    shell = f"{sys.executable} {SCRIPT} status | head -c 1"
    done = subprocess.run(
        ["bash", "-c", shell], env={**os.environ, **cluster.environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("h", "")


def test_up_twice_is_refused_and_another_name_is_another_cluster(tool):
    tool.does("up", "--hosts", "1")
    assert "is up already; `down` first, or give a --name" in tool.refuses("up", "--hosts", "1")
    output = json.loads(
        tool.does("up", "--hosts", "2", "--name", "two", "--rate", "8mbit", "--json")
    )
    assert [host["rate"] for host in output["hosts"]] == ["8mbit", "8mbit"]
    assert output["hosts"][0]["address"] == tool.host("h1")["address"]
    tool.does("exec", "--name", "two", "h1", "sh", "-c", "echo two >/dev/shm/which")
    assert tool("exec", "h1", "cat", "/dev/shm/which").returncode == 1
    tool.does("down", "--name", "two")
    assert tool.host("h1")["state"] == "up"
    assert "no cluster 'two', only virtual (see --name)" in tool.refuses("status", "--name", "two")


def test_addresses_and_packets_are_as_asked(tool):
    tool.does("up", "--hosts", "2", "--network", "192.168.9.0/28", "--mtu", "1500")
    [link] = json.loads(tool.does("exec", "h2", "ip", "-j", "address", "show", "dev", "eth0"))
    assert link["mtu"] == 1500
    assert link["addr_info"][0]["local"] == "192.168.9.2"
    assert tool.does("exec", "h1", "ssh", "192.168.9.2", "hostname") == "h2"


def test_a_latency_is_kept_or_said_to_be_impossible(tool):
    done = tool("up", "--hosts", "1", "--latency", "10ms", "--json")
    assert done.returncode == 0, done.stderr
    kinds = {q["kind"] for q in json.loads(tool.does("exec", "h1", "tc", "-j", "qdisc", "show"))}
    if json.loads(done.stdout)["latency_ms"] is None:
        assert "this kernel has no netem: --latency 10ms is left out" in done.stderr
        assert "netem" not in kinds
    else:
        assert {"netem", "tbf"} <= kinds
    assert tool.host("h1")["rate"] == "1gbit"


def test_down_ends_what_runs_and_keeps_what_is_the_users(tool, tmp_path):
    tool.does("up", "--hosts", "2")
    shared = tool.clusters / "virtual" / "shared"
    (shared / "run").mkdir()
    (shared / "run" / "result").touch()
    jobs = [
        tool.start(tmp_path / name, "exec", name, "sh", "-c", "echo on; setsid sleep 1000000")
        for name in ("h1", "h2")
    ]
    try:
        for job in jobs:
            job.says("on")
        output = tool.does("down")
        assert "nothing is left of it" in output
        assert str(shared) in output
        assert [job.ends() for job in jobs] == [128 + 9] * 2
        assert not tool.processes()
    finally:
        for job in jobs:
            job.kill()
    assert [path.name for path in (tool.clusters / "virtual").iterdir()] == ["shared"]
    assert "was not up" in tool.does("down")
    tool.does("up", "--hosts", "1")
    assert (shared / "run" / "result").exists()
    tool.does("down", "--purge")
    assert not (tool.clusters / "virtual").exists()
    assert json.loads(tool.does("down", "--json")) == {"was_up": False, "kept": None}


def test_a_cluster_whose_root_is_killed_is_gone_and_can_be_made_anew(tool):
    tool.does("up", "--hosts", "2")
    [switch] = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if is_first(entry, f"switch\0{tool.clusters}/virtual\0")
    ]
    os.kill(switch, signal.SIGKILL)
    until(lambda: not tool.processes(), "everything to end by itself")
    assert "is down" in tool.refuses("status")
    assert "is down" in tool.refuses("exec", "h1", "true")
    tool.does("up", "--hosts", "1")
    assert tool.does("exec", "h1", "hostname") == "h1"


def is_first(entry: Path, tail: str) -> bool:
    """True if a process is the first of its namespace and its words end like this."""
    try:
        pids = [line for line in (entry / "status").read_text().splitlines() if "NSpid" in line]
        return (entry / "cmdline").read_text().endswith(tail) and pids[0].split()[-1] == "1"
    except OSError:
        return False


@pytest.fixture
def sshd(tool: Tool, tmp_path: Path) -> Path:
    """Returns the place of a program that the command takes for sshd."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool.environment["PATH"] = f"{folder}:{os.environ['PATH']}"
    return folder / "sshd"


def test_an_up_that_fails_says_why_and_leaves_nothing(tool, sshd):
    sshd.write_text(NO_SSHD)
    sshd.chmod(0o755)
    done = tool("up", "--hosts", "3")
    assert done.returncode == 15, done.stderr
    assert "cannot bring 'virtual' up: h1: its sshd does not listen: planted" in done.stderr
    assert "Traceback" not in done.stderr
    assert not tool.processes()
    assert not list(tool.clusters.iterdir())


@pytest.mark.parametrize("point", ["switch", "host", "sshd"])
def test_an_up_that_is_killed_on_its_way_leaves_nothing(point, tool, sshd, tmp_path):
    sshd.write_text(STUCK_SSHD)  # so that it cannot be up before it is killed
    sshd.chmod(0o755)
    words = {"switch": " switch /", "host": " host /", "sshd": " -D -e -f "}[point]
    job = tool.start(tmp_path / "log", "up", "--hosts", "3")
    try:
        until(lambda: words in "\n".join(tool.processes()), f"{point} to start")
        job.process.kill()
        job.ends()
        until(lambda: not tool.processes(), "everything to end by itself")
    finally:
        job.process.kill()
        job.process.wait()
    tool.does("down")
    assert not list(tool.clusters.iterdir())


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda tool, up: tool.does("down"), 15),
        (lambda tool, up: up.send_signal(signal.SIGTERM), 130),
        (lambda tool, up: up.send_signal(signal.SIGINT), 130),
    ],
    ids=["down", "SIGTERM", "Ctrl-C"],
)
def test_an_up_that_hangs_can_be_ended(end, code, tool, sshd, tmp_path):
    sshd.write_text(STUCK_SSHD)
    sshd.chmod(0o755)
    job = tool.start(tmp_path / "log", "up", "--hosts", "1")
    try:
        until(lambda: " -D -e -f " in "\n".join(tool.processes()), "the sshd that never listens")
        end(tool, job.process)
        assert job.ends() == code, job.output
        assert "Traceback" not in job.output
    finally:
        job.kill()
    assert not list(tool.clusters.iterdir())


@pytest.fixture
def stranger(possible: None) -> Iterator[Tool]:
    """Yields the command run by a user without privileges."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("NOBODY TO BECOME: needs root and setpriv")
    users = [
        user for user in pwd.getpwall() if user.pw_uid >= 1000 and user.pw_shell.endswith("sh")
    ]
    pythons = [sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""]
    for user in users:
        become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        for python in filter(None, pythons):
            tried = [*become, "sh", "-c", f"{python} -S {SCRIPT} --help"]  # from homes, it may not
            if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
                folder = Path(tempfile.mkdtemp(prefix="vc-user-"))  # pytest's are closed to others
                os.chown(folder, user.pw_uid, user.pw_gid)
                yield Tool(folder / "clusters", become, python)
                shutil.rmtree(folder)
                return
    pytest.skip("NOBODY TO BECOME: needs a user who may log in, and who can read a Python and this")


def test_a_user_without_privileges_has_the_same(stranger):
    tool, before = stranger, machine()
    try:
        if (done := tool("check")).returncode:
            pytest.skip(f"NO CLUSTER FOR A USER HERE: {done.stdout}{done.stderr}")
        tool.does("up", "--hosts", "3", "--rate", "100mbit")
        user = tool.does("exec", "h1", "id", "-u")
        assert user == str(tool.clusters.stat().st_uid) != "0"
        output = tool.does("exec", "h1", "ssh", "h2", "id -u; ssh h3 hostname")
        assert output.split() == [user, "h3"]
        tool.does("throttle", "h3", "5mbit")
        tool.does("partition", "h3")
        tool.does("kill", "h2")
        states = [(tool.host(name)["state"], tool.host(name)["rate"]) for name in ("h2", "h3")]
        assert states == [("killed", None), ("partitioned", "5mbit")]
        tool.does("down")
        tool.leaves_nothing()
        assert machine() == before
    finally:
        tool("down", "--purge")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give privileges up")
def test_a_missing_privilege_is_named_with_its_remedy(possible):
    plain = Tool(Path("/nowhere"), ["setpriv", "--bounding-set=-all", "--inh-caps=-all"])
    for command in (["check"], ["up"]):
        done = plain(*command)
        assert done.returncode == 2, done.stdout + done.stderr
        told = done.stdout + done.stderr
        assert "namespaces are not allowed here" in told
        assert "this root lacks CAP_SYS_ADMIN" in told
