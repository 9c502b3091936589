"""Usage errors of the virtual cluster's command; these tests need no privilege."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.virtual.vc import ROOT, SCRIPT, Tool

from atomo_cluster.virtual.cli import instructions
from atomo_cluster.virtual.options import make_parser
from atomo_cluster.virtual.spec import ClusterFolder, VirtualCluster, hosts_of

pytestmark = pytest.mark.slow

COMMANDS = ["check", "up", "status", "exec", "partition", "heal", "throttle", "kill", "down"]


@pytest.fixture
def anywhere(tmp_path: Path) -> Tool:
    return Tool(tmp_path / "clusters")


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_command_has_help_with_an_example_and_exit_codes(command, anywhere):
    output = anywhere.does(*([command] if command else []), "--help")
    assert (
        f"virtual_cluster.py {command or 'up'}" in output.split("options:")[0].split("\n\n", 1)[1]
    )
    assert "exit codes:" in output
    for code in (
        "0    it is done",
        "2    bad usage",
        "15   it was tried and failed",
        "130  it was",
    ):
        assert code in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("up --rate 100", "rate '100': write 64kbit to 400gbit, e.g. 100mbit"),
        ("up --rate 1kbit", "rate '1kbit': write 64kbit to 400gbit"),
        ("up --latency 10", "--latency '10': write e.g. 10ms"),
        ("up --hosts 0", "--hosts 0: 10.77.0.0/24 has addresses for 1 to 254 hosts"),
        ("up --hosts 7 --network 10.0.0.0/29", "10.0.0.0/29 has addresses for 1 to 6 hosts"),
        ("up --network 10.0.0.1/24", "--network 10.0.0.1/24: "),
        ("up --mtu 100", "--mtu 100: 576 to 9216 bytes"),
        ("up --name ../x", "'../x': letters, digits, - and _"),
        ("status", "there is no cluster 'virtual'; `up` makes one"),
        ("exec h1 true", "there is no cluster 'virtual'"),
        ("partition h1", "there is no cluster 'virtual'"),
        ("nonsense", "invalid choice: 'nonsense'"),
        ("", "required: COMMAND"),
    ],
)
def test_bad_usage_ends_with_2_and_says_what_is_good(words, said, anywhere):
    assert said in anywhere.refuses(*words.split())
    assert not anywhere.clusters.exists()


def test_a_path_that_ssh_cannot_have_is_refused(tmp_path, possible):
    odd = Tool(tmp_path / "a b")
    assert "ssh's configuration cannot hold this path; see --clusters" in odd.refuses("up")
    odd.leaves_nothing()


@pytest.mark.parametrize("words", ["", "--name wan", "--name wan --clusters elsewhere"])
def test_up_says_commands_that_mean_this_cluster(words, tmp_path, monkeypatch):
    monkeypatch.setenv("ATOMO_CLUSTERS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    parser = make_parser(tmp_path)
    asked = parser.parse_args(["up", *words.split()])
    place = ClusterFolder(Path(asked.clusters).absolute() / asked.name)
    hosts, length = hosts_of("10.77.0.0/24", 2)
    said = instructions(place, VirtualCluster(hosts, length, 10**9, None, 9000, None), SCRIPT)
    lines = [shlex.split(line) for line in said.splitlines() if str(SCRIPT.name) in line]
    assert len(lines) == 2
    for line in lines:
        command = line[next(n for n, word in enumerate(line) if word.endswith(SCRIPT.name)) + 1 :]
        told = parser.parse_args(command)
        assert Path(told.clusters).absolute() / told.name == place.folder
        assert told.command != "exec" or (told.host, told.words[:2]) == (
            "h1",
            ["bash", "run_pytorch.sh"],
        )


def test_taking_away_what_is_not_there_is_no_error(anywhere):
    assert "was not up" in anywhere.does("down")


def test_every_missing_program_is_named_with_its_package(tmp_path):
    """Checks a machine that has a Python and nothing else."""
    look = "from atomo_cluster.virtual import check, programs\n"
    look += "programs.ADMIN = ''; print(check.obstacles())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", look],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for program, package in [
        ("ip", "iproute2"), ("tc", "iproute2"), ("sshd", "openssh-server"),
        ("ssh", "openssh-client"), ("unshare", "util-linux"),
    ]:  # fmt: skip
        assert f"missing: {program} (package {package})" in done.stdout


def test_a_bare_python_suffices():
    done = subprocess.run(
        [sys.executable, "-E", "-s", "-S", SCRIPT, "--help"],  # -S: no site-packages
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
