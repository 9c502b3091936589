"""The cluster's package does not import the library, and its commands start without
heavy packages.
"""

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
# A package may import those before it.
# Virtual hosts have nothing but a Python.
ALONE = {"virtual": ["errors", "visible", "plain_files"]}
ORDER = ["__init__", "errors", "names", "visible", "plain_files", "arguments", "program", "ec2"]
# The same within the commands for EC2; `__main__` and `cli` are the entry.
EC2_ORDER = ["__init__", "settings", "aws", "invocation", "hosts", "places", "images", "money",
             "launch", "targets", "jobs", "checks", "supervisor", "commands", "cli",
             "__main__"]  # fmt: skip
COMMANDS_ORDER = ["__init__", "planning", "hosts", "jobs", "clusters"]
HEAVY = {"atomo", "torch", "torchvision", "numpy", "numba", "mpi4py"}
LATE = {"boto3", "botocore", "yaml"}  # for a command that acts; none needs them to be explained


def imported(path, package, depth):
    """Returns the rooms below `package` that a file imports, `depth` names deep."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules |= {name for name in names if name.startswith(package)}
    return {".".join(name.split(".")[:depth]) for name in modules}


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_only_what_comes_before(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    before = ALONE[room] if room in ALONE else ORDER[: ORDER.index(room)]
    assert imported(path, "atomo", 2) <= {f"atomo_cluster.{name}" for name in [room, *before]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "order"), [("ec2", EC2_ORDER), ("ec2.commands", COMMANDS_ORDER)]
)
def test_rooms_of_ec2_import_only_what_comes_before(package, order):
    folder, prefix = PACKAGE / package.replace(".", "/"), f"atomo_cluster.{package}."
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        before = {f"{prefix}{name}" for name in order[: order.index(room) + 1]}
        assert imported(path, prefix, prefix.count(".") + 1) <= before, path


def test_no_folder_of_ec2_has_more_than_fifteen_files():
    folders = [path for path in (PACKAGE / "ec2").rglob("*") if path.name[0] != "_"]
    sizes = {path: len([*path.glob("*.*")]) for path in folders}
    assert not [path for path, files in sizes.items() if files > 15]


def test_the_library_knows_nothing_of_clusters():
    assert not [path for path in LIBRARY.rglob("*.py") if "atomo_cluster" in path.read_text()]


def loaded(code):
    """Returns the top-level packages that a fresh interpreter has imported after `code`."""
    code += "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
def test_no_module_loads_what_is_heavy():
    names = [".".join(["atomo_cluster", *p.relative_to(PACKAGE).with_suffix("").parts])
             for p in MODULES]  # fmt: skip
    every = ", ".join(name.removesuffix(".__init__") for name in names)
    assert not loaded(f"import {every}") & HEAVY


@pytest.mark.slow(cases=("words1",))
@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in ("plan", "status"))])
def test_help_loads_neither_the_heavy_nor_what_acts(words):
    code = "from contextlib import suppress\nfrom atomo_cluster.ec2.cli import main\n"
    found = loaded(f"{code}with suppress(SystemExit): main({words!r})")
    assert not found & (HEAVY | LATE)


def codes(module):
    """Returns the exit codes of a module's errors."""
    kinds = [one for one in vars(module).values() if isinstance(one, type)]
    return {kind.exit_code for kind in kinds if issubclass(kind, Exception)}


def test_exit_codes_tell_a_cluster_from_a_training_on_it():
    """`train` and `exec` pass on what the training ended with."""
    assert codes(atomo_cluster.errors) & codes(atomo.errors) == {1, 2}  # a defect, a bad setting
