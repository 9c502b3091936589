"""CONTRIBUTING shows all that a communicator, a codec, a kernel backend or a data set takes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import atomo

ROOT = Path(__file__).parents[2]
SHOWN = re.findall(r"^```diff\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
PART = re.compile(r"--- (\S+)\n\+\+\+ b/(\S+)\n@@[^\n]*\n(.*)", re.S)

pytestmark = [pytest.mark.slow, pytest.mark.long]


def parts(diff: str) -> list[tuple[str, str, str]]:
    """Returns, for each file of a diff, its name before and after, and its lines."""
    found = [PART.fullmatch(part) for part in re.split(r"^(?=--- )", diff, flags=re.M) if part]
    return [part.groups() for part in found]


def side(lines: str, sign: str) -> str:
    """Returns the text of a part before a change ("-") or after it ("+")."""
    # An empty line is one of both, whose blank at the front editors have taken away.
    marked = [line if line != "\n" else " \n" for line in lines.splitlines(keepends=True)]
    return "".join(line[1:] for line in marked if line[0] in (" ", sign))


def apply(diff: str, root: Path) -> None:
    """Makes the changes of a unified diff, each of which is in one place of its file."""
    for before, name, lines in parts(diff):
        path = root / name
        removed, added = side(lines, "-"), side(lines, "+")
        if before == "/dev/null":
            assert not path.exists()
            path.write_text(added)
        else:
            text = path.read_text()
            assert text.count(removed) == 1, f"{name} has changed: show the line as it is now"
            path.write_text(text.replace(removed, added))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Returns a copy of the package with all that is shown."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(atomo.__file__).parent, root / "src" / "atomo")
    for diff in SHOWN:
        apply(diff, root)
    return root


def run(copy: Path, *words: str) -> str:
    """Runs a module with the copy, and returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_is_one_file_and_one_line_of_a_table():
    assert len(SHOWN) == 4
    for diff in SHOWN:
        (new, _, _), (table, _, lines) = parts(diff)
        assert new == "/dev/null"
        assert table != "/dev/null"
        assert sum(line.startswith("+") for line in lines.splitlines()) == 1


def test_the_codec_obeys_its_laws_and_the_backend_keeps_the_contract_of_the_others(copy):
    where = ["tests/codecs/test_contract.py", "tests/kernels/test_kernel_cast.py"]
    chosen = "(test_contract and int8) or (test_kernel_cast and cuda)"
    words = run(copy, "pytest", "-v", "-n", "0", *where, "-k", chosen)
    passed = re.findall(r"^tests/\w+/(\w+)\.py::.* PASSED", words, re.M)
    assert passed.count("test_contract") > 8
    assert passed.count("test_kernel_cast") >= 2


@pytest.mark.long
@pytest.mark.parametrize("ranks", ["--n 2", "--n 3 --comm-type median"])
def test_the_data_set_the_codec_and_the_communicator_train(ranks, copy, tmp_path):
    words = f"--dataset sides --network FC --code int8 {ranks} --max-steps 60 --evaluator none"
    printed = run(
        copy, "atomo", "train", *words.split(), "--train-dir", str(tmp_path), "--timeout", "300"
    )
    assert "Sides" in printed
    text = run(copy, "atomo", "evaluate", "--model-dir", str(tmp_path))
    assert float(re.search(r"top-?1\D*([\d.]+) ?%", text)[1]) > 90, text
