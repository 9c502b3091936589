"""Commands in the pages parse: every command, in blocks and in tables."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from support.wheels import sources

from atomo.cli import throughput
from atomo.cli.bench import BenchOptions
from atomo.cli.evaluate import EvaluateOptions
from atomo.cli.explain import ExplainOptions
from atomo.cli.inspect_gradient import InspectOptions
from atomo.cli.throughput import plan_steps
from atomo.config.effects import TRAIN_EFFECTS
from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.core.distribution import EXTRAS, IMPORTS
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.resolve import canonical_settings
from atomo.launch.studies.grid import axes_of, grid_points

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
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
    """Returns the text of a page, with its long lines whole."""
    return page.read_text().replace("\\\n", " ")


def commands(page: Path) -> list[str]:
    """Returns those that are there to the end."""
    text = joined(page)
    told = [line.strip() for line in text.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    return [one for one in told if one.startswith((*STARTS,)) and not LEFT_OUT.search(one)]


def asked_for(command: str) -> Settings:
    start = next(start for start in STARTS if command.startswith(start))
    words, name = shlex.split(command.removeprefix(start), comments=True), STARTS[start]
    words += ["--n=4"] if "--slurm" in words else []  # which an allocation says, and here is none
    if name == "throughput":
        words = ["--dataset=Noise", *plan_steps(words)[1]]
    elif name == "sweep":
        axes, words = axes_of(words)
        words += [f"{option}={value}" for option, value in next(iter(grid_points(axes))).items()]
    run = parse_cli_settings(words, name, "")
    run.check(no_caution, throughput.EFFECTS if name == "throughput" else TRAIN_EFFECTS)
    return canonical_settings(run.settings)


def no_caution(line: str) -> None:
    raise AssertionError(f"a command of a page has an option without effect: {line}")


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.stem)
def test_every_command_of_a_page_is_understood(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in commands(page):
        assert asked_for(command).workers >= 1, command


def test_codecs_that_a_page_gives_by_themselves_go_with_the_defaults():
    text = (ROOT / "docs" / "which-codec.md").read_text()
    told = re.findall(r"`(--code-(?:for|schedule) '[^`]+)`", text)
    assert len(told) >= 2
    for words in told:
        assert asked_for(f"atomo train {words}").memory


LAUNCHED = re.compile(r"^(?:\S*/)?(?:mpirun|torchrun) .*(?:-m atomo|examples/).*$", re.MULTILINE)


def test_ranks_are_started_by_commands_that_a_clone_has():
    """A clone's first script makes .venv, and nothing puts it on the path."""
    texts = [*PAGES, *(ROOT / "examples").glob("*.py")]
    told = [line for page in texts for line in LAUNCHED.findall(joined(page))]
    assert len(told) > 5
    for line in told:
        assert re.match(
            r"\.venv/bin/(mpirun .*--oversubscribe .*\.venv/bin/python|torchrun) ", line
        )


# Our name, with no path before it: an index of packages has somebody else's under it.
INDEX = re.compile(r"pip3? install\b[^\n`;|&]*?[\s'\"]atomo(?![\w./-])")
EXTRA = re.compile(r"pip3? install\b[^\n`;|&]*?[\s'\"][./][\w./-]*\[([\w, ]+)\]")
INSTALL = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/", "src/", "examples/",
           "configs/", "tools/", "benchmarks/", "tests/hooks", "tests/workloads",
           "tests/workloads/models")  # fmt: skip


def whole(text: str) -> str:
    """Returns a text with the strings of its programs whole that stand on several lines."""
    return re.sub(r"[\"']\s*\n\s*f?[\"']", "", text.replace("\\\n", " "))


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("pip install atomo", True),
        ("`pip install 'atomo[accelerate]'`", True),
        ('x/bin/pip install -U "atomo==0.1"', True),
        ("pip install 'atomo @ git+https://example.org'", True),
        ('"pip install "\n    f"atomo[text]"', True),
        ("pip install -e '.[text]'", False),
        ("pip install '/path/to/atomo[text]'", False),
        ("pip install dist/atomo-0.1.0-py3-none-any.whl", False),
        ("`pip install jiwer`, or Atomo's extra of `atomo`", False),
    ],
)
def test_what_would_come_from_an_index_is_found(line, is_wrong):
    assert bool(INDEX.search(whole(line))) == is_wrong


def test_no_line_has_us_installed_from_an_index_and_every_extra_is_there():
    """There is no release yet: the distribution comes from a checkout or a wheel."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in sorted(name for name in sources() if name.startswith(INSTALL)):
        if not name.endswith((".png", ".npz", ".gz")):
            text = whole((ROOT / name).read_text(errors="replace"))
            assert not INDEX.search(text), f"{name}: {INDEX.findall(text)}"
            for found in EXTRA.findall(text):
                named = {*found.replace(" ", "").split(",")}
                assert named <= {*extras["optional-dependencies"]}, f"{name}: {found}"


def test_messages_name_the_packages_of_the_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, packages in EXTRAS.items():
        brought = extras["optional-dependencies"][extra]
        bare = [line.partition(";")[0] for line in brought]
        assert [*packages] in (bare, [line for line in brought if ";" not in line])
    assert {*IMPORTS.values()} <= {*EXTRAS}


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
        parse_arguments(OTHERS[name], words, name, "")
