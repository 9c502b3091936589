"""Waits of the cluster's package: each has a bound, or a comment `unbounded:` says why not."""

import ast
import os
import threading
from pathlib import Path

import pytest

import atomo_cluster
from atomo_cluster.ec2.hosts import checkout, host_keys, keys, streaming, transfer
from atomo_cluster.ec2.hosts.ssh import Host, Ssh
from atomo_cluster.errors import ConfigError, Failed, RemoteError
from atomo_cluster.virtual import programs

PACKAGE = Path(atomo_cluster.__file__).parent
REASON = "unbounded:"
RUNS = {"run", "call", "check_call", "check_output"}  # of subprocess
# Methods that wait for ever without an argument.
BARE = {"wait", "communicate", "join", "acquire", "result", "get", "readline"}
ALWAYS = {"urlopen", "create_connection"}  # need a timeout besides their arguments
HOST = Host("i-1", "worker1", "worker", "203.0.113.1", "10.0.0.1")


def waits(path):
    """Yields the calls of a module that may wait for ever."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and may_hang(node):
            yield node


def may_hang(call):
    """True if a call waits and has no bound."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    owner = getattr(getattr(call.func, "value", None), "id", "")
    if any(word.arg in ("timeout", None) for word in call.keywords):
        return False
    if name in ALWAYS or (owner == "subprocess" and name in RUNS):
        return True
    return isinstance(call.func, ast.Attribute) and name in BARE and not call.args


def has_reason(path, call):
    """True if a comment at the call, or in the line above, says why there is no bound."""
    lines = path.read_text().splitlines()
    return any(REASON in line for line in lines[call.lineno - 2 : call.end_lineno])


@pytest.mark.slow
def test_every_wait_has_a_bound_or_a_reason():
    found = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}: {ast.unparse(call)[:60]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in waits(path)
        if not has_reason(path, call)
    ]
    assert not found


def test_a_wait_without_a_bound_is_seen(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "subprocess.run(line)\nprocess.wait()\nthread.join()\n', '.join(words)\nthread.join(3)\n"
        "subprocess.run(line, timeout=3)\nprocess.wait()  # unbounded: it is the user's\n"
    )
    calls = [call for call in waits(module) if not has_reason(module, call)]
    assert [call.lineno for call in calls] == [1, 2, 3]


@pytest.fixture
def hung(monkeypatch, tmp_path):
    """Has every program sleep for minutes, and all bounds end at once."""
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 300\n")
    sleeper.chmod(0o755)
    for name in ("ssh-keygen", "ssh-keyscan", "git", "ssh", "ip"):
        (tmp_path / name).symlink_to(sleeper)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for module, bound in ((checkout, "GIT_S"), (host_keys, "LOOKUP_S"), (keys, "KEYGEN_S"),
                          (transfer, "LEAST_S"), (programs, "PROGRAM_S")):  # fmt: skip
        monkeypatch.setattr(module, bound, 0.05)
    return Ssh("ubuntu", None, tmp_path / "known_hosts")


@pytest.mark.slow
def test_programs_that_hang_are_named(hung, tmp_path):
    with pytest.raises(ConfigError, match=r"git did not list its files within 0\.05 s"):
        checkout.checkout_files(tmp_path)
    assert host_keys.scan("203.0.113.1", "22") == set()
    with pytest.raises(RemoteError, match="ssh -G does not end within"):
        host_keys.resolve_address(hung, HOST)
    with pytest.raises(ConfigError, match="ssh-keygen cannot read it"):
        keys.public_key_of(tmp_path / "key")
    with pytest.raises(Failed, match="`ip link` does not end within"):
        programs.run("ip", "link")


@pytest.mark.slow
def test_a_host_that_takes_no_bytes_ends_a_transfer(hung, tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(2**18))  # more than a pipe takes
    far = transfer.RemoteFile(1000, 0.0, "mark")
    with (tmp_path / "out").open("wb") as out, pytest.raises(RemoteError, match="not done within"):
        transfer.HostSource(hung, HOST, "data").read("model", far, out, 0)
    with pytest.raises(RemoteError, match="not done within"):
        transfer.send_small(hung, HOST, {"data": file}, "data")


def test_the_bound_of_a_transfer_grows_with_its_size():
    assert transfer.transfer_s(0) == transfer.LEAST_S
    assert transfer.transfer_s(2**34) > 2**20  # 16 GiB on a slow line


def test_a_child_that_keeps_the_errors_open_holds_nothing_up(monkeypatch):
    """As the ProxyCommand of ssh does."""
    monkeypatch.setattr(streaming, "LAST_WORDS_S", 0.05)
    script = "sleep 3 >/dev/null & echo done"  # the child inherits the errors
    monkeypatch.setattr(Ssh, "words", lambda *_: ["sh", "-c", script])
    ssh = Ssh("ubuntu", None, Path("known_hosts"))
    lines, before = [], threading.active_count()
    answer = streaming.run_streaming(ssh, HOST, "true", lambda host, line: lines.append(line))
    assert (answer.code, lines) == (0, ["done"])
    assert threading.active_count() > before  # the child still has them open


def test_an_interrupted_command_is_killed():
    started = []

    def interrupt(stream):
        started.append(next(iter(stream)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streaming.relay(["sh", "-c", "echo $$; exec sleep 300"], interrupt, list)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started[0]), 0)
