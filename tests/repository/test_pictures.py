"""The scripts behind the pictures and samples of the documents."""

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
from matplotlib import pyplot

from atomo.codecs import CODECS, make_codec

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "codecs" / "figures.md"


def script(name: str) -> dict:
    """Returns the names that a benchmark defines."""
    return runpy.run_path(str(ROOT / "benchmarks" / name))


@pytest.mark.slow
def test_the_picture_of_the_codecs_has_a_row_and_a_full_label_for_each(tmp_path, monkeypatch):
    picture = script("codecs_picture.py")
    rows = picture["read"](TABLE.read_text())
    assert len(rows) == TABLE.read_text().count("\n| `")
    assert sorted(sum(picture["FAMILIES"].values(), ())) == sorted(CODECS)
    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    picture["draw"](pyplot, rows, tmp_path / "codecs.png")
    size, _, error = pyplot.gcf().axes
    labels = [label.get_text() for label in size.get_yticklabels()]
    assert sorted(labels) == sorted(row.spec for row in rows)
    votes = [row.spec for row in rows if make_codec(row.spec).id in picture["VOTES"]]
    assert len([text for text in error.texts if "vote" in text.get_text()]) == len(votes) > 0
    monkeypatch.undo()
    pyplot.close("all")


def test_a_sample_has_the_first_steps_and_the_last():
    steps = [f"step {n}/4 loss 1 ETA 0:0{n}\n" for n in range(1, 5)]
    output = "".join(["head\n", *steps[:3], "checkpoint  \n", steps[3], "end\n"])
    shown = [*script("readme.py")["shortened"](output)]
    first, second, last = (f"step {n}/4 loss 1\n" for n in (1, 2, 4))
    assert shown == ["head\n", first, second, "...\n", "checkpoint\n", last, "end\n"]


def test_drawings_of_the_pages_are_those_of_their_script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "pages"))
    drawings = import_module("drawings")
    for name, draw in drawings.DRAWINGS.items():
        text = draw().svg()
        assert (drawings.FOLDER / f"{name}.svg").read_text() == text, (
            "python tools/pages/drawings.py"
        )
        assert min(int(size) for size in re.findall(r'font-size="(\d+)"', text)) >= 13
        assert "<desc" in text
        assert "prefers-color-scheme: dark" in text
    assert len(drawings.DRAWINGS) == len([*drawings.FOLDER.glob("*.svg")]) > 5
