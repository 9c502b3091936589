"""Commands that start jobs do without PyTorch, whose import takes longer than all they do."""

import importlib
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from repository.test_imports import MODULES, PACKAGE

from atomo.codecs import CODECS
from atomo.config.comm_types import REDUCTIONS
from atomo.core.process.deferred import defer
from atomo.core.tables import Table
from atomo.workloads import TASKS
from atomo.workloads.datasets import DATASETS
from atomo.workloads.models import MODELS

# All that a launcher does: it refuses options, checks those of every codec, and shows a job.
LAUNCHER = """
import gc
import sys
from atomo.cli import main

assert main(["--version"]) == 0
assert main(["train", "--network", "LeNett"]) == 2
assert main(["sweep", "--lr", "1,2", "--code", "svd(rank=x)"]) == 2
assert main(["throughput", "--code", "topc"]) == 2

from rich.console import Console
from atomo.codecs import CODECS
from atomo.launch.display.panel import LivePanel
from atomo.launch.display.lines import PlainLines
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.supervisor import Supervisor
from atomo.launch.resolve import resolve_settings

words = [f"--code={code}" for code in (*CODECS, "svd(factors=fp16)", "topk(values=qsgd)")]
words += ["--down=delta(topk)", "--down=weights(bf16)", "--recipe=dgc", "--network=VGG11"]
for word in words:
    given = parse_cli_settings([word, "--evaluator=none"], "train", "")
    settings = resolve_settings(given.settings)

from support.fake_job import ended, mpirun

for display in (PlainLines(sys.stdout, 1), LivePanel(Console())):
    job = Supervisor(settings, mpirun(), display)
    assert ended(job) == 0
    display.close()
assert "torch._C" not in sys.modules, "PyTorch was used"
assert gc.get_freeze_count(), "modules are looked through for garbage"
"""


def test_a_launcher_imports_no_torch(tmp_path):
    """`atomo.core.process.deferred` says how modules are written so that this holds."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Yields the name of a module that was never imported."""
    (tmp_path / "seldom.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "seldom"
    sys.modules.pop("seldom", None)


def test_a_deferred_module_is_imported_when_something_of_it_is_used(module):
    defer(module)
    import seldom

    assert type(sys.modules[module]) is type(seldom)
    assert "value" not in vars(seldom)
    assert seldom.value == 3
    assert sys.modules[module].__file__.endswith("seldom.py")
    assert seldom.value == 3  # by the name that was bound before
    with pytest.raises(AttributeError, match="'seldom' has no attribute 'valeu'"):
        seldom.valeu  # noqa: B018


def test_names_of_a_deferred_module_are_its_own(module):
    defer(module)
    from seldom import value

    assert value == 3
    assert "value" in vars(sys.modules[module])


def test_what_was_imported_is_not_deferred(module):
    there = importlib.import_module(module)
    defer(module)
    assert sys.modules[module] is there


def test_a_table_has_its_names_without_any_module():
    table = Table("nowhere", {"a": "b:C"})
    assert ([*table], len(table), "a" in table, "b" in table) == (["a"], 1, True, False)
    with pytest.raises(KeyError):
        table["b"]
    with pytest.raises(ModuleNotFoundError):
        table["a"]


@pytest.mark.parametrize(
    ("table", "own"),
    [
        (CODECS, "id"),
        (TASKS, "id"),
        (MODELS, "name"),
        (DATASETS, "name"),
        (REDUCTIONS, "__name__"),
    ],
)
def test_things_have_the_name_that_their_table_has_for_them(table, own):
    assert [getattr(entry, own) for entry in table.values()] == [*table]


def test_annotations_that_stay_text_can_be_read():
    """If they could not be resolved, the type checks of the tests would silently skip them."""
    late = [path for path in MODULES if "from __future__ import annotations" in path.read_text()]
    assert len(late) > 50
    for path in late:
        name = ".".join(["atomo", *path.relative_to(PACKAGE).with_suffix("").parts])
        for function in functions(importlib.import_module(name.removesuffix(".__init__"))):
            typing.get_type_hints(function)


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yields those of a module and of its classes."""
    for entry in vars(module).values():
        if getattr(entry, "__module__", None) == module.__name__:
            for member in [entry, *vars(entry).values()] if inspect.isclass(entry) else [entry]:
                if inspect.isfunction(member):
                    yield inspect.unwrap(member)
