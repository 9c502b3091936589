"""Commands for clusters in the pages: every line parses, with its options."""

import re
import shlex
from pathlib import Path

import pytest

from atomo_cluster.ec2.cli import COMMANDS, parsed
from atomo_cluster.ec2.commands import module_of

ROOT = Path(__file__).parents[2]
TOOL = re.compile(r"(?:python )?(?:tools/)?pytorch_ec2\.py ([a-z_]+)\b(.*)")
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
)


def lines(page: Path) -> list[tuple[str, str]]:
    """Returns the commands with their arguments, from blocks and from sentences."""
    text = page.read_text().replace("\\\n", " ")
    told = [line.strip() for line in text.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    found = (TOOL.match(one.removeprefix("$ ")) for one in told)
    return [(one[1], one[2]) for one in found if one]


def words_of(rest: str) -> list[str]:
    """Returns the words of a command, up to the first operator of the shell."""
    words = shlex.split(rest, comments=True)
    ends = [at for at, word in enumerate(words) if word in ("|", "&&", ">", "||", ";")]
    return words[: ends[0]] if ends else words


TOLD = {page: lines(page) for page in PAGES if page.suffix in (".md", ".yaml", ".sbatch", ".sh")}


@pytest.mark.parametrize("page", [page for page in TOLD if TOLD[page]], ids=lambda page: page.stem)
def test_every_line_about_clusters_is_understood(page):
    for name, rest in TOLD[page]:
        assert name in COMMANDS, f"{name}{rest}"
        parsed(name, module_of(name), words_of(rest))


def test_there_are_lines_of_most_commands():
    told = {name for found in TOLD.values() for name, _ in found}
    assert len(told) > 20, sorted({*COMMANDS} - told)
