"""What the pages tell to type is understood: every command, in blocks and in tables."""

import re
import shlex
from pathlib import Path

import pytest

from atomo.arguments import parse
from atomo.cli import throughput
from atomo.cli.bench import BenchOptions
from atomo.cli.evaluate import EvaluateOptions
from atomo.cli.explain import ExplainOptions
from atomo.cli.inspect import InspectOptions
from atomo.cli.throughput import planned
from atomo.config import Settings
from atomo.launch.given import given
from atomo.launch.grid import axes_of, points
from atomo.launch.place import canonical
from atomo.setting_effects import EFFECTS

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


def joined(page: Path) -> str:
    """The text of a page, with its long lines whole."""
    return page.read_text().replace("\\\n", " ")


def commands(page: Path) -> list[str]:
    """Those that are there to the end."""
    text = joined(page)
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
    run = given(words, name, "")
    run.check(no_caution, throughput.EFFECTS if name == "throughput" else EFFECTS)
    return canonical(run.settings)


def no_caution(line: str) -> None:
    raise AssertionError(f"a command of a page has an option without effect: {line}")


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.stem)
def test_every_command_of_a_page_is_understood(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in commands(page):
        assert asked_for(command).workers >= 1, command


def test_codecs_that_readme_gives_by_themselves_go_with_the_defaults():
    text = (ROOT / "README.md").read_text()
    told = re.findall(r"`(--code-(?:for|schedule) '[^`]+)`", text)
    assert len(told) >= 2
    for words in told:
        assert asked_for(f"atomo train {words}").memory


OTHERS = {
    "bench": BenchOptions,
    "evaluate": EvaluateOptions,
    "explain": ExplainOptions,
    "inspect": InspectOptions,
}
OTHER = re.compile(rf"(?:\.venv/bin/)?atomo ({'|'.join(OTHERS)}) (.+)")


def test_every_other_command_of_the_pages_is_understood():
    told = [
        (found[1], found[2])
        for page in PAGES
        for line in re.findall(r"`([^`\n]+)`|^(.+)$", joined(page), re.MULTILINE)
        if (found := OTHER.fullmatch("".join(line).strip())) and not LEFT_OUT.search(found[2])
    ]
    assert len(told) > 10
    for name, rest in told:
        words = shlex.split(rest, comments=True)
        if name == "explain" and words[0][0] != "-":  # what it is about
            words.pop(0)
        parse(OTHERS[name], words, name, "")
