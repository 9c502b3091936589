"""The output of commands fits into 80 columns."""

import pytest

from atomo_cluster.ec2.cli import COMMANDS, main
from atomo_cluster.ec2.invocation.wrapping import wrap_line

LOOKS = ("validate", "plan", "launch --dry-run", "status", "get_hosts", "cost", "iam --check",
         "list_running_instances", "shutdown --dry-run")  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert not [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]


def test_the_list_of_commands_fits(capsys):
    assert main(["--help"]) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]


@pytest.mark.slow
def test_what_a_terminal_shows_fits(ec2, cloud, monkeypatch):
    cloud.prices, cloud.quotas, cloud.denied = {"m5.large": 0.096}, {}, {"ec2:RunInstances"}
    around = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    for key, value in around.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    long = []
    for line in (*LOOKS[:3], "launch --yes", *LOOKS[3:], "shutdown --yes"):
        done = ec2(*line.split(), "--method", "reserved", "--placement-group", "yes")
        assert done.out, done.err
        assert "\u2026" not in done.out  # a table that lost something
        long += [(line, text) for text in done.out.splitlines() if len(text) > 80]
    assert not long


@pytest.mark.slow
def test_plans_fit_wherever_they_go(ec2):
    assert max(map(len, ec2("plan", "--method", "reserved").out.splitlines())) <= 80


def test_words_stay_whole():
    line = "  subnet subnet-e7636d551627072d3 is where the hosts are"
    assert wrap_line(line, 40).splitlines() == [
        "  subnet subnet-e7636d551627072d3 is",
        "  where the hosts are",
    ]
