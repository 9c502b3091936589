"""What the pages tell to type is understood: every command that trains, in blocks and in tables."""

import re
import shlex
from pathlib import Path

import pytest

from atomo.cli.throughput import planned
from atomo.config import Settings
from atomo.launch.given import given
from atomo.launch.grid import axes_of, points
from atomo.launch.place import canonical

ROOT = Path(__file__).parent.parent
STARTS = {
    "bash run_pytorch.sh": "train",
    ".venv/bin/atomo train": "train",
    ".venv/bin/atomo sweep": "sweep",
    "atomo train": "train",
    "atomo sweep": "sweep",
    "atomo throughput": "throughput",
}
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# What readers fill in, a shell does, or a sentence around it says.
LEFT_OUT = re.compile(r"\.\.\.|\$|\b(RUN|FILE|FOLDER|HOSTS|CODEC)\b|--help|--[a-z-]+$")


def commands(page: Path) -> list[str]:
    """Those that are there to the end."""
    text = page.read_text().replace("\\\n", " ")
    told = [line.strip() for line in text.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    return [one for one in told if one.startswith((*STARTS,)) and not LEFT_OUT.search(one)]


def asked_for(command: str) -> Settings:
    start = next(start for start in STARTS if command.startswith(start))
    words, name = shlex.split(command.removeprefix(start), comments=True), STARTS[start]
    words += ["--n=4"] if "--slurm" in words else []  # which an allocation says, and here is none
    if name == "throughput":
        words = ["--dataset=Noise", *planned(words)[1]]
    elif name == "sweep":
        axes, words = axes_of(words)
        words += [f"{option}={value}" for option, value in next(iter(points(axes))).items()]
    return canonical(given(words, name, "").settings)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.stem)
def test_every_command_of_a_page_is_understood(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in commands(page):
        assert asked_for(command).workers >= 1, command
