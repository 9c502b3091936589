"""Text of hosts, jobs, files and AWS reaches a terminal without control characters."""

import sys
from argparse import Namespace

from rich.table import Table

import atomo_cluster.visible
from atomo.core.visible import visible
from atomo_cluster.ec2.hosts.streaming import relay_output
from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.errors import ConfigError
from atomo_cluster.program import dispatch

OBEYED = "\x1b]0;title\x07\x1b[31m"
SHOWN = r"\x1b]0;title\x07\x1b[31m"
IN_TABLES = r"\x1b]0;title\x1b[31m"  # rich drops some of them


def test_lines_and_tables(capsys):
    run = Run(Namespace(yes=True), Document(enabled=False))
    table = Table("host", title=OBEYED)
    table.add_row(f"{OBEYED}[/b]")
    run.say(OBEYED)
    run.show(table)
    shown = capsys.readouterr().out
    assert shown.startswith(f"{SHOWN}\n")
    assert f"{IN_TABLES}[/b]" in shown
    assert "\x1b" not in shown


def test_errors(capsys):
    def act(name, words):
        raise ConfigError(OBEYED)

    assert dispatch("ec2", {"plan": ""}, str, act, ["plan"]) == 2
    assert capsys.readouterr().err == f"ec2 plan: {SHOWN}\n"


def test_what_a_job_prints(capsys):
    code = "import sys; print(sys.argv[1]); sys.stderr.write(sys.argv[1]); sys.exit(7)"
    assert relay_output([sys.executable, "-c", code, OBEYED], as_json=False) == 7
    assert capsys.readouterr() == (f"{SHOWN}\n", SHOWN)
    assert relay_output([sys.executable, "-c", code, OBEYED], as_json=True) == 7
    assert not capsys.readouterr().out


def test_both_packages_hide_the_same():
    text = "".join(map(chr, range(0x3000))) + "\udcff"
    assert atomo_cluster.visible.visible(text) == visible(text)
