"""Text of others reaches a terminal without control characters."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from atomo.cli.sweep import print_trial
from atomo.core.visible import shorten, visible
from atomo.launch.console import report_console
from atomo.launch.display.lines import PlainLines
from atomo.launch.display.panel import LivePanel
from atomo.launch.display.summary import Summary
from atomo.launch.studies.quiet_jobs import QuietDisplay
from atomo.launch.studies.sweep_results import SweepTrial, results_table
from atomo.training.job.events import Caution, Ended
from atomo.workloads import make_task

SRC = Path(__file__).parents[2] / "src"
OBEYED = "\x1b]0;title\x07\x1b[31m"
SHOWN = r"\x1b]0;title\x07\x1b[31m"
IN_TABLES = r"\x1b]0;title\x1b[31m"  # rich drops some of them


def test_ends_of_lines_and_letters_stay():
    assert visible("é\tü\nß") == "é\tü\nß"
    assert visible("\u202e\udcff\x9b") == r"\u202e\udcff\x9b"


@pytest.mark.parametrize("size", [0, 4, 5, 1000])
def test_a_text_is_cut_in_its_middle(size):
    text = "ab" * size
    assert shorten(text, 10)[:5] == text[:5]
    assert len(shorten(text, 10)) <= max(10, 50)


def test_lines_show_it():
    out = io.StringIO()
    plain = PlainLines(out, 1)
    plain.note(OBEYED)
    plain.show(Caution(OBEYED))
    assert out.getvalue() == f"{SHOWN}\ncaution: {SHOWN}\n"


def test_the_panel_shows_it():
    out = io.StringIO()
    live = LivePanel(Console(file=out, force_terminal=False, width=100))
    live.note(OBEYED)
    live.close()
    assert SHOWN in out.getvalue()
    assert "\x1b]" not in out.getvalue()


def test_the_closing_table_shows_it(capsys):
    summary = Summary()
    summary.add(Ended(1, OBEYED))
    report_console().print(summary.table())
    shown = capsys.readouterr().out
    assert IN_TABLES.capitalize() in shown  # of the title
    assert "\x1b" not in shown


def test_a_sweep_shows_it(capsys):
    trial = SweepTrial(f"{OBEYED}[/b]", "", 1, 0.5, 0.5, 0.1, 1.0)
    print_trial(trial)
    QuietDisplay().note(OBEYED)
    report_console().print(results_table([trial], make_task("images").metrics[0]))
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{SHOWN}[/b]: loss")
    assert f"{IN_TABLES}[/b] " in shown.out
    assert "\x1b" not in shown.out + shown.err


def test_no_other_console_prints_tables():
    """A console of its own would print the content of cells unchanged."""
    made = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        if re.search(r"\bConsole\($|\bConsole\([^)]", path.read_text(), re.MULTILINE)
    }
    assert made == {"atomo/launch/console.py", "atomo_cluster/ec2/invocation/console.py"}
