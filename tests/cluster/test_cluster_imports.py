"""The cluster's package stands beside the library, and its commands start without what is heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import atomo.errors
import atomo_cluster.errors

PACKAGE = Path(atomo_cluster.__file__).parent
LIBRARY = Path(atomo.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# A room may import those before it.
ALONE = {"virtual": ["errors", "visible"]}  # runs where there is nothing but a Python
ORDER = ["__init__", "errors", "names", "visible", "arguments", "program", "ec2"]
HEAVY = {"atomo", "torch", "torchvision", "numpy", "numba", "mpi4py"}
LATE = {"boto3", "botocore", "yaml"}  # for a command that acts; none needs them to be explained


def outer(path):
    """The rooms of either package that a file imports, as `package.room`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {".".join(name.split(".")[:2]) for name in names if name.startswith("atomo")}
    return found


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_only_what_comes_before(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    before = ALONE[room] if room in ALONE else ORDER[: ORDER.index(room)]
    assert outer(path) <= {f"atomo_cluster.{one}" for one in [room, *before]}


def test_the_library_knows_nothing_of_clusters():
    assert not [path for path in LIBRARY.rglob("*.py") if "atomo_cluster" in path.read_text()]


def loaded(code):
    """The outermost names of what a fresh interpreter has imported after `code`."""
    code += "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_no_module_loads_what_is_heavy():
    names = [".".join(["atomo_cluster", *p.relative_to(PACKAGE).with_suffix("").parts])
             for p in MODULES]  # fmt: skip
    every = ", ".join(name.removesuffix(".__init__") for name in names)
    assert not loaded(f"import {every}") & HEAVY


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in ("plan", "status"))])
def test_help_loads_neither_the_heavy_nor_what_acts(words):
    code = "from contextlib import suppress\nfrom atomo_cluster.ec2.cli import main\n"
    found = loaded(f"{code}with suppress(SystemExit): main({words!r})")
    assert not found & (HEAVY | LATE)


def codes(module):
    """The exit codes of a module's errors."""
    kinds = [one for one in vars(module).values() if isinstance(one, type)]
    return {kind.exit_code for kind in kinds if issubclass(kind, Exception)}


def test_exit_codes_tell_a_cluster_from_a_training_on_it():
    """`train` and `exec` pass on what the training ended with."""
    assert codes(atomo_cluster.errors) & codes(atomo.errors) == {1, 2}  # a defect, a bad setting
