"""The statements of docs/codecs.md and of each family's page about a codec are true."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from atomo.codecs import CODECS, Codec, Law, make_codec
from atomo.memory import default_memory

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.stem: page.read_text() for page in (DOCS / "codecs").glob("*.md")}
CHOICE = (DOCS / "codecs.md").read_text()
WIDEST = 120  # columns, of prose and tables alike


def rows(text: str) -> dict[str, list[str]]:
    """Returns the rows of all tables whose first cell is code, by that."""
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line[:3] == "| `"]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in cells}


def described(name: str) -> str:
    """Returns the section of a codec, on the page of its family."""
    found = [
        part
        for page in PAGES.values()
        for part in re.split(r"^## ", page, flags=re.MULTILINE)
        if part.startswith(f"`{name}`\n")
    ]
    assert len(found) == 1, f"{name} has {len(found)} sections"
    return found[0]


def typed(default: Any) -> str:
    """Returns a default as the tables have it."""
    if default is None:
        return "none"
    return f"{default:g}" if isinstance(default, float) else f"{default}"


@pytest.mark.parametrize("name", CODECS)
def test_every_setting_of_a_codec_is_told_with_its_default(name):
    told = {setting: row[0] for setting, row in rows(described(name)).items()}
    assert told == {field.name: typed(field.default) for field in dataclasses.fields(CODECS[name])}


@pytest.mark.parametrize("name", CODECS)
def test_law_memory_and_bits_of_a_codec_are_told(name):
    words = " ".join(described(name).split())
    assert "- Law: " in words
    assert "- Bits: " in words
    memory = default_memory(make_codec(name))
    assert re.search(rf"Memory: \[?`{memory}`", words)


def choices() -> list[tuple[str, Codec[Any], list[str]]]:
    """Returns the rows to choose from."""
    table = CHOICE[CHOICE.index("| codec | sends") : CHOICE.index("A name alone")]
    return [(spec, make_codec(spec), cells) for spec, cells in rows(table).items()]


def test_there_is_a_row_to_choose_each_codec():
    assert {codec.id for _, codec, _ in choices()} == set(CODECS)


@pytest.mark.parametrize(("spec", "codec", "cells"), choices())
def test_a_row_to_choose_from_has_the_codecs_laws_and_memory(spec, codec, cells):
    _, laws, memory, *_ = cells
    if spec == "terngrad":  # only without clipping has it a law
        assert laws == "`clip=0`: unbiased"
        assert {Law.UNBIASED} == make_codec("terngrad(clip=0)").laws
    else:
        assert {*laws.split(", ")} == ({law.name.lower() for law in codec.laws} or {"none"})
    assert memory == f"`{default_memory(codec)}`"


@pytest.mark.parametrize(("spec", "codec", "cells"), choices())
def test_a_row_to_choose_from_rounds_the_figures(spec, codec, cells):
    measured = {make_codec(key): row for key, row in rows(PAGES["figures"]).items()}
    if codec not in measured:
        assert cells[3:5] == ["varies", "varies"]
        return
    encode, decode, bits = (float(number) for number in measured[codec][:3])
    assert math.isclose(float(cells[3]), bits, abs_tol=0.051 if bits >= 1 else 0.0051)
    assert all(
        math.isclose(float(told), number, abs_tol=0.051)
        for told, number in zip(cells[4].split(", "), (encode, decode), strict=True)
    )


@pytest.mark.parametrize(
    "page", [DOCS / "codecs.md", *sorted((DOCS / "codecs").glob("*.md"))], ids=lambda p: p.stem
)
def test_pages_are_narrow_enough_to_read(page):
    wide = [line for line in page.read_text().splitlines() if len(line) > WIDEST]
    assert not wide, wide[0]
