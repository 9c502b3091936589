"""The statements of the README and of the pages are true: options, defaults, exit codes, names,
paths, bytes and examples.
"""

import dataclasses
import doctest
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import atomo
from atomo import errors
from atomo.cli import COMMANDS
from atomo.cli import main as command_line
from atomo.cli.evaluate import EvaluateOptions
from atomo.codecs import CODECS
from atomo.config.file import SETTINGS_FILE
from atomo.config.identity import METHOD, STATE, WEIGHTS
from atomo.config.settings import Settings
from atomo.core.arguments import flag
from atomo.core.number_text import bytes_text
from atomo.memory import MEMORIES
from atomo.options.recipes import RECIPES
from atomo.workloads.datasets import DATASETS, load_dataset
from atomo.workloads.models import MODELS, build_model

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
BENCHMARKS = ROOT / "benchmarks"
TEXTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), BENCHMARKS / "README.md"])
# tests/hooks/test_examples.py runs these on several ranks, except those of FSDP2, which
# tests/hooks/fsdp_ranks.py, local_fsdp.py and sharding/ cover.
SEVERAL = {
    "ddp", "fsdp_reduce_scatter", "onebit_adam", "own_loop", "with_accelerate", "with_fsdp",
    *(f"local_{loop}" for loop in ("steps", "ddp", "fsdp", "accelerate", "trainer", "lightning")),
}  # fmt: skip
EXTRA = {"with_lightning", "with_ray"}  # of tests/hooks/test_frameworks.py and test_ray.py
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if p.stem not in SEVERAL | EXTRA)
PATH = re.compile(
    r"`((?:src|tests|docs|examples|benchmarks|tools)/[\w./-]*|[\w./-]+\.(?:sh|md|toml))`"
)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")

every_text = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)


def table(settings: type) -> str:
    """Returns the options of a command as the reference shows them."""
    rows = [
        f"| `{flag(field.name)}` | {shown(field.default)} | {field.metadata['help']} |"
        for field in dataclasses.fields(settings)
    ]
    return "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def shown(default: object) -> str:
    """Returns a default as one would type it."""
    if isinstance(default, bool):
        return "`yes`" if default else "`no`"
    return "" if default in (None, "") else f"`{default}`"


def section(text: str, title: str) -> str:
    """Returns the text under a heading, up to the next heading."""
    parts = re.split(r"^(#+ .*)$", text, flags=re.MULTILINE)
    return next(body for head, body in zip(parts[1::2], parts[2::2], strict=True) if title in head)


@pytest.mark.parametrize("settings", [Settings, EvaluateOptions])
def test_the_reference_lists_every_option(settings):
    assert table(settings) in (REFERENCE / "commands.md").read_text()


def test_the_reference_lists_what_prepare_takes(capsys):
    with pytest.raises(SystemExit):
        command_line(["prepare", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    rows = section((REFERENCE / "commands.md").read_text(), "`atomo prepare`").splitlines()
    assert set(re.findall(r"^\| `(--[a-z-]+)`", "\n".join(rows), re.MULTILINE)) == options


def test_the_reference_lists_every_exit_code():
    rows = section((REFERENCE / "exit-codes.md").read_text(), "`atomo`")
    for name in {*errors.__all__} - {"FrameFault"}:  # which is no error
        code = getattr(errors, name).exit_code
        assert re.search(rf"^\| {code} \|.*`{name}`", rows, re.MULTILINE), f"{name} is {code}"
    assert f"| {errors.INTERRUPTED} |" in rows


@pytest.mark.parametrize(
    ("things", "many"), [("codecs", CODECS), ("memories", MEMORIES), ("recipes", RECIPES)]
)
def test_what_the_readme_counts_is_so_many(things, many):
    assert f"{len(many)} {things}" in README.read_text()


def test_the_sample_is_a_run_of_todays_network_and_data(tmp_path):
    """`benchmarks/readme.py` checks the losses and times."""
    sample = section((DOCS / "guides" / "first-run.md").read_text(), "Read the output")
    data, options = load_dataset("Digits", tmp_path), Settings()
    entries = sum(p.numel() for p in build_model("LeNet", data.input_shape, 10).parameters())
    images, workers = len(data.train), options.n - 1
    steps = images // (workers * options.batch_size)
    assert "<!-- output of: bash run_pytorch.sh --train-dir runs/x -->\n```\nLeNet" in sample
    assert f"LeNet ({entries:,} parameters) on Digits ({images:,} images), code svd" in sample
    assert f"{steps} steps an epoch, {options.epochs * steps} steps; runs/x" in sample
    assert f"step 10/{options.epochs * steps} epoch {10 / steps:.2f} loss" in sample
    assert f"(dense {bytes_text(4 * workers * entries)}," in sample
    assert f" on {len(data.test)} images" in sample


def test_what_is_gained_and_lost_was_measured():
    """Each figure of the first table and of its footnote is one of the results."""
    results = (DOCS / "results.md").read_text()
    table = README.read_text().split("Gains on four hosts")[1].split("- **")[0]
    figures = re.findall(r"\d+\.\d+", table)
    assert len(figures) > 20
    assert all(re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", results) for one in figures), figures
    for line in table.splitlines():
        if line.startswith("| PowerSGD"):  # the row of PyTorch's PowerSGD shows ours as well
            assert re.search(r"PowerSGD --svd-rank 4|powersgd\(rank=4\)", line.split("|")[4]), line
        elif line.startswith("| ") and "`" in line:
            assert line.split("|")[3].strip() == "none", line


@pytest.mark.parametrize("name", [*COMMANDS, *CODECS, *MEMORIES, *MODELS, *DATASETS])
def test_the_reference_knows_every_name(name):
    texts = "".join(page.read_text() for page in sorted(REFERENCE.glob("*.md")))
    assert re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", texts), f"{name} is not there"


def test_what_a_resume_must_not_change_is_listed():
    told = section((DOCS / "training.md").read_text(), "Resuming")
    assert all(f"`{flag(name)}`" in told for name in (*WEIGHTS, *STATE, *METHOD))


@every_text
def test_links_and_paths_lead_somewhere(text):
    words = text.read_text()
    if text.name == "from-other-systems.md":  # names options of others
        words = re.sub(r"^\| [^|]* \|", "", words, flags=re.MULTILINE)
    for link in LINK.findall(FENCED.sub("", words)):  # where an index and a call may look like one
        assert (text.parent / link).exists(), f"{text.name} links {link}"
    for path in set(PATH.findall(words)) - {SETTINGS_FILE}:  # which each run has
        assert any((base / path).exists() for base in (ROOT, text.parent)), f"{text.name}: {path}"


def test_every_benchmark_is_in_the_index_and_on_the_page_that_it_names():
    rows = (BENCHMARKS / "README.md").read_text().splitlines()
    pages = {row.split("`")[1]: LINK.findall(row)[1:] for row in rows if row.startswith("| [`")}
    assert {*pages} == {path.name for path in BENCHMARKS.glob("*.py")}
    for name, page in pages.items():
        assert all(name in (BENCHMARKS / link).read_text() for link in page), f"{name} in {page}"


@every_text
def test_what_a_prompt_shows_is_what_it_says(text):
    failed, _ = doctest.testfile(str(text), module_relative=False)
    assert not failed


def test_the_frame_that_is_taken_apart_is_a_real_one():
    words = (DOCS / "wire.md").read_text()
    rows = re.findall(r"^ *\d+  ((?:[0-9a-f]{2} )+)", words, re.MULTILINE)
    frame = atomo.encode(torch.tensor([1.0, 0.5, -2.0]), "fp16", seed=0)
    assert bytes.fromhex("".join(rows)) == frame


@pytest.mark.long(
    cases=(
        "by_bytes",
        "compare_codecs",
    )
)
@pytest.mark.slow(cases=("one_shot.py",))
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.name, marks=[] if path.stem == "one_shot" else pytest.mark.slow)
        for path in EXAMPLES
    ],
)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    with torch.random.fork_rng():
        runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir())
