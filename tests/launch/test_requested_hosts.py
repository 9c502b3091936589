"""Jobs that ask for several hosts, and the hosts that their ranks are on."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.harness import together
from support.jobs import Job

from atomo.cli import main
from atomo.cli.rank import requested_hosts, split_placement
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.launch.jobs import host_requests as in_environment
from atomo.launch.jobs.host_requests import hosts_of_launcher
from atomo.launch.jobs.mpirun import find_mpirun, mpirun_command
from atomo.training.host_spread import check_spread
from atomo.training.job.requested_hosts import RequestedHosts
from atomo.transports import network

# As mpi-operator 0.8 names the pods of a job, in a file that it mounts.
PODS = """\
digits-worker-0.digits.default.svc slots=1
digits-worker-1.digits.default.svc slots=1
"""
Operator = Callable[[str], dict[str, str]]


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """Makes the environment of a launcher as Kubernetes' MPI operator does."""
    for variable in in_environment.VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def environment(text: str) -> dict[str, str]:
        path = tmp_path / "hostfile"
        path.write_text(text)
        return {
            "K_MPI_JOB_ROLE": "launcher",
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": str(path),
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "OMPI_MCA_orte_set_default_slots": "1",
        }

    return environment


def enter(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> str:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment["OMPI_MCA_orte_default_hostfile"]


def test_a_job_for_this_host_is_refused_in_a_launcher_of_the_operator(
    operator, monkeypatch, tmp_path, capsys
):
    path = enter(monkeypatch, operator(PODS))
    folder = tmp_path / "run"
    assert main(["train", "--n=2", f"--train-dir={folder}"]) == 2
    assert capsys.readouterr().err == (
        "atomo train: OMPI_MCA_orte_default_hostfile names 2 hosts, and without --hostfile all "
        f"ranks would run on this one: give --hostfile {path}, or a file with the line `localhost` "
        "to train here\n"
    )
    assert not folder.exists()
    own = tmp_path / "own"
    own.write_text("localhost\n")
    assert mpirun_command(Settings(hostfile=str(own)), [])
    assert mpirun_command(Settings(mpi_args=f"--hostfile {path}"), [])
    enter(monkeypatch, operator(PODS.splitlines()[0]))  # one worker, one host
    assert mpirun_command(Settings(), [])


def test_ranks_are_told_how_many_belong_on_each_host(operator, tmp_path):
    path = operator(PODS)["OMPI_MCA_orte_default_hostfile"]
    line = mpirun_command(Settings(n=2, hostfile=path), ["--train-dir=x"])
    assert line[-2:] == ["--ranks-per-host=1,1", "--train-dir=x"]
    assert line[line.index("--host") + 1].split(",")[1] == "digits-worker-1.digits.default.svc:1"
    hosts = tmp_path / "hosts"
    hosts.write_text(f"localhost\n{socket.gethostname()}\nb\nc slots=1\n")
    assert "--ranks-per-host=4,2,1" in mpirun_command(Settings(n=7, hostfile=str(hosts)), [])
    assert "--ranks-per-host=3,1" in mpirun_command(Settings(n=4, hostfile=str(hosts)), [], {"b"})


def test_a_rank_reads_what_was_asked_for(operator):
    assert split_placement(["--lr=1", "--ranks-per-host", "2,1"]) == ((2, 1), ["--lr=1"])
    for text in ("2,", "x", "1,0", "-1"):
        with pytest.raises(ConfigError, match="is not a list such as 2,1"):
            split_placement([f"--ranks-per-host={text}"])
    asked = requested_hosts(Settings(hostfile="hosts"), (2, 1), True)
    assert (asked.source, asked.ranks) == ("--hostfile hosts", (2, 1))
    assert requested_hosts(Settings(slurm=True, n=2), (1, 1), True).source == "--slurm"
    assert requested_hosts(Settings(), (1, 1), False).source == "--ranks-per-host"
    environment = operator(PODS)
    path = environment["OMPI_MCA_orte_default_hostfile"]
    asked = hosts_of_launcher([], environment)
    assert (asked.source, asked.ranks) == ("OMPI_MCA_orte_default_hostfile", ())
    assert "Open MPI 5 ignores this variable" in asked.fix
    asked = hosts_of_launcher([], {"PRTE_MCA_prte_default_hostfile": path})
    assert asked.fix == f"start the ranks with `mpirun --hostfile {path} --map-by node`"
    for words in (["--hostfile", path], ["-H", "a:2,b"]):
        assert hosts_of_launcher(words, {}).source == "--mpi-args"
    for words in (["--host", "a:4"], ["-x", "A"]):
        assert hosts_of_launcher(words, {}) is None
    assert hosts_of_launcher([], {"HYDRA_HOST_FILE": "/nowhere/hosts"}) is None


@pytest.mark.parametrize(
    ("ranks", "hosts", "is_right"),
    [
        ((2, 1), ["a", "a", "b"], True),
        ((1, 2), ["a", "a", "b"], True),
        ((1, 1), ["a", "a"], False),
        ((2, 2), ["a", "a", "a", "b"], False),
        ((), ["a", "a", "b"], True),
        ((), ["a", "a"], False),
    ],
)
def test_ranks_that_are_elsewhere_are_found(ranks, hosts, is_right):
    asked = RequestedHosts("--hostfile x", "look", ranks)
    if is_right:
        asked.check(hosts)
        return
    with pytest.raises(ConfigError, match=r"^--hostfile x asks for .*, and the ranks are .*: look"):
        asked.check(hosts)


def test_hosts_of_one_name_are_told_apart_by_their_kernels(monkeypatch):
    asked = RequestedHosts("--hostfile x", "look", (1, 1))
    monkeypatch.setattr("atomo.training.host_spread.kernel", iter("ab").__next__)
    check_together(asked, 2)
    monkeypatch.setattr("atomo.training.host_spread.kernel", lambda: "a")
    name = socket.gethostname()
    with pytest.raises(ConfigError, match=f"asks for hosts with 1, 1 ranks, .* 2 on {name}: look"):
        check_together(asked, 2)
    with pytest.raises(ConfigError, match=f"asks for several hosts, and the ranks are 2 on {name}"):
        check_together(RequestedHosts("OMPI", "look"), 2)


def check_together(asked: RequestedHosts, ranks: int) -> None:
    def body(transport) -> Callable[[], object]:
        return lambda: check_spread(transport, asked, 60.0)

    together([body(transport) for transport in network(ranks)])


@pytest.mark.slow
def test_a_job_of_mpirun_that_stays_on_one_host_is_refused(operator, tmp_path):
    """The ranks as users start them in a launcher of the operator: Open MPI 5 ignores its host
    file, and all are on one host.
    """
    words = [find_mpirun(), "-n", "2", "--allow-run-as-root", "--oversubscribe", sys.executable]
    words += ["-m", "atomo", "rank", "--n=2", "--network=FC", "--max-steps=1"]
    job = Job([*words, f"--train-dir={tmp_path / 'run'}"], tmp_path / "log", operator(PODS))
    try:
        assert job.ends() == 2, job.output
    finally:
        job.kill()
    told = "OMPI_MCA_orte_default_hostfile asks for several hosts, and the ranks are 2 on "
    assert f"rank 0 (master), before the first step: {told}{socket.gethostname()}" in job.output
    assert not (tmp_path / "run").exists()
