"""ssh through Session Manager: no port is open, hosts have the profile, host keys are pinned."""

import os
import sys

import pytest

from atomo_cluster.ec2.aws.session_manager import CORE, require_programs
from atomo_cluster.errors import ConfigError

SSM = ("--connect", "ssm")
# A stand-in for the AWS CLI that connects to the sshd of the instance.
AWS = """#!{python}
import json, socket, sys, threading
words = sys.argv[1:]
assert words[:3] == ["ssm", "start-session", "--region"], words
assert "AWS-StartSSHSession" in words and "portNumber=22" in words, words
port = json.load(open("{ports}"))[words[words.index("--target") + 1]]
link = socket.create_connection(("127.0.0.1", port))
def out():
    while data := link.recv(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
threading.Thread(target=out, daemon=True).start()
while data := sys.stdin.buffer.read1(65536):
    link.sendall(data)
"""


@pytest.fixture
def sessions(lab, folder, monkeypatch):
    """Returns a lab whose hosts are reached through sessions alone."""
    programs, ports = folder / "programs", folder / "ports"
    programs.mkdir()
    pairs = zip(lab.records, lab.hosts, strict=True)
    ports.write_text("{" + ",".join(f'"{one["id"]}": {host.port}' for one, host in pairs) + "}")
    (programs / "aws").write_text(AWS.format(python=sys.executable, ports=ports))
    (programs / "session-manager-plugin").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    lab.lead({})  # no address leads anywhere
    return lab


@pytest.mark.slow
def test_commands_run_through_sessions_and_keys_are_pinned(sessions):
    done = sessions("run_command", "all", "echo here", *SSM, "--json")
    assert done.code == 0, done.err
    assert [one["out"] for one in done.record] == ["here\n"] * 2
    assert [one["host"]["address"] for one in done.record] == [one["id"] for one in
                                                              sessions.records]  # fmt: skip
    for record, host in zip(sessions.records, sessions.hosts, strict=True):
        key = " ".join(host.public.split()[:2])
        assert f"{record['id']} {key} scanned\n" in sessions.known_hosts


def test_what_sessions_take_here_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    told = ("needs aws here", "needs session-manager-plugin here, .* not installed: https://docs")
    for program, words in zip(("aws", "session-manager-plugin"), told, strict=True):
        with pytest.raises(ConfigError, match=words):
            require_programs()
        (tmp_path / program).write_text("")
        (tmp_path / program).chmod(0o755)
    require_programs()


@pytest.mark.slow
def test_no_port_is_open_and_hosts_are_managed(ec2, cloud, sessions_programs):
    asked = []
    cloud.on("RunInstances", lambda words, forward: asked.append(words), times=2)
    done = ec2("launch", "--yes", *SSM, "--supervise", "yes")
    assert done.code == 0, done.err
    assert "ssh through Session Manager alone" in " ".join(done.out.split())
    client = cloud.moto.client()
    groups = client.describe_security_groups()["SecurityGroups"]
    (group,) = [one for one in groups if one["GroupName"].startswith("atomo-")]
    assert [rule["IpProtocol"] for rule in group["IpPermissions"]] == ["-1"]
    profiles = {
        role: words["IamInstanceProfile.Name"]
        for words in asked
        for role in ("master", "worker")
        if role in words.values()
    }
    assert profiles["worker"].endswith("-hosts")
    assert profiles["master"] == profiles["worker"].removesuffix("-hosts")
    assert cloud.attached == dict.fromkeys(profiles.values(), CORE)
    assert not cloud.moto.client("iam").list_role_policies(RoleName=profiles["worker"])[
        "PolicyNames"
    ]
    assert ec2("shutdown", "--yes").code == 0
    assert not cloud.attached
    assert not cloud.moto.client("iam").list_instance_profiles()["InstanceProfiles"]


@pytest.fixture
def sessions_programs(tmp_path, monkeypatch):
    """Puts the programs that sessions need on the PATH."""
    folder = tmp_path / "needed"
    folder.mkdir()
    for name in ("aws", "session-manager-plugin"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
