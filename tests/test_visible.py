"""Text of others reaches a terminal without what the terminal would obey."""

import io

import pytest
from rich.console import Console

from atomo.launch.display import Live
from atomo.launch.lines import Plain
from atomo.training.events import Caution
from atomo.visible import cut, visible

OBEYED = "\x1b]0;title\x07\x1b[31m"
SHOWN = r"\x1b]0;title\x07\x1b[31m"


def test_ends_of_lines_and_letters_stay():
    assert visible("é\tü\nß") == "é\tü\nß"
    assert visible("\u202e\udcff\x9b") == r"\u202e\udcff\x9b"


@pytest.mark.parametrize("size", [0, 4, 5, 1000])
def test_a_text_is_cut_in_its_middle(size):
    text = "ab" * size
    assert cut(text, 10)[:5] == text[:5]
    assert len(cut(text, 10)) <= max(10, 50)


def test_lines_show_it():
    out = io.StringIO()
    plain = Plain(out, 1)
    plain.note(OBEYED)
    plain.show(Caution(OBEYED))
    assert out.getvalue() == f"{SHOWN}\ncaution: {SHOWN}\n"


def test_the_panel_shows_it():
    out = io.StringIO()
    live = Live(Console(file=out, force_terminal=False, width=100))
    live.note(OBEYED)
    live.close()
    assert SHOWN in out.getvalue()
    assert "\x1b]" not in out.getvalue()
