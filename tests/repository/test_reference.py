"""The pages of the reference are made from the code, and every command prints its help."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from atomo.cli import COMMANDS
from atomo.cli import main as command_line

ROOT = Path(__file__).parents[2]


def test_the_reference_is_what_the_code_says(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "pages"))
    pages = import_module("reference").differing()
    names = [path.name for path in pages]
    assert not names, "write them anew: python tools/pages/reference.py"
    assert len(sys.modules["reference"].PAGES) > 5


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_its_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        command_line([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: atomo {command}" in capsys.readouterr().out
