"""The wheel has every file, and works alone: no checkout, no PYTHONPATH."""

import ast
import re
import subprocess
import tarfile
import zipfile

import pytest
from support.wheels import ROOT, TWO_RANKS, build, check_metadata, sources

import atomo

METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
CHECKOUT = re.compile(r"\b(docs|examples|benchmarks|tests)/|\bREADME|\.md\b")

# After two ranks of DDP: the commands. Codecs are made rather than run: to compile the loops of
# some takes longer than all the rest.
USES = (
    TWO_RANKS.replace("CODE", "powersgd(rank=1)")
    + """
import sys
from pathlib import Path
from atomo.cli import main

assert Path(atomo.__file__).is_relative_to(sys.prefix), atomo.__file__

for name in atomo.CODECS:
    atomo.make_codec(name)
torch.set_num_threads(1)
gradient = "gradient.safetensors"
from safetensors.torch import save_file
save_file({"weight": torch.linspace(-1, 1, 4096).view(64, 64)}, gradient)
for words in (
    ["bench", "--tensor", gradient, "--code", "sgd", "--repetitions", "1"],
    ["inspect", "--tensor", gradient, "--code", "sgd"],
    ["explain", "--gradient", gradient, "--code", "sgd", "--compute", "80ms", "--repetitions", "1"],
):
    assert main(words) == 0, words
"""
)


def messages(tree):
    """Yields the strings of a file that are no documentation."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            yield str(node.value)


@pytest.mark.slow
def test_no_message_names_what_a_wheel_lacks():
    """The reader may have no checkout: the message itself is complete."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for text in messages(ast.parse(path.read_text())):
            assert not CHECKOUT.search(text), f"{path}: {text}"


def test_no_file_of_the_checkout_is_ignored():
    """A build leaves out files that git ignores, even if they are committed."""
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--ignored", "--exclude-standard"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.slow
def test_what_is_built_has_every_file_and_no_other(installed):
    ours = {name.removeprefix("src/") for name in sources() if name.startswith("src/atomo/")}
    configs = {f"atomo/{name}" for name in sources() if name.startswith("configs/")}
    about = {f"atomo_torch-{atomo.__version__}.dist-info/{name}" for name in METADATA}
    assert len(configs) > 30
    assert {*zipfile.ZipFile(installed.wheel).namelist()} == ours | configs | about


@pytest.mark.slow
def test_the_source_distribution_has_every_file_and_builds_the_same_wheel(installed, tmp_path):
    with tarfile.open(installed.sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    root = tmp_path / f"atomo_torch-{atomo.__version__}"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == sources() | {"PKG-INFO"}
    build(root, tmp_path, "wheel")
    assert next(tmp_path.glob("*.whl")).read_bytes() == installed.wheel.read_bytes()


@pytest.mark.slow
def test_an_index_would_take_it(installed):
    check_metadata(installed)


@pytest.mark.long
def test_the_parts_work(installed):
    printed = installed.run("python", "-c", USES)
    assert all(title in printed for title in ("Dense under any codec", "Do not compress", "sgd"))


@pytest.mark.slow
def test_it_trains_by_a_published_file_and_knows_its_version(installed):
    words = "--network FC --n 2 --max-steps 3 --evaluator none --timeout 300 --train-dir run"
    file = "configs/atomo/sgd.toml"
    printed = installed.run("atomo", "train", "--config", file, *words.split())
    assert re.search(r"code sgd, .* 3 steps; ", printed), printed
    assert "training ended at step 3: done" in printed
    assert installed.run("atomo", "--version").startswith(f"atomo {atomo.__version__}, Python ")
