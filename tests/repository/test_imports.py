"""Imports point one way, and importing does nothing."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import atomo
from atomo.transports import TRANSPORTS

PACKAGE = Path(atomo.__file__).parent

# A room may import those before it. A new one takes the earliest place that its imports allow.
ORDER = [
    "errors",
    "core",
    "kernels",
    "codecs",
    "options",
    # None of these knows of another.
    ("memory", "wire"),
    ("transports", "fusion"),
    "exchange",
    "config",
    "api",
    "workloads",
    "planning",
    "analysis",
    "training",
    "report",
    "hooks",
    "launch",
    "cli",
    "__main__",
]
LEVEL = {
    room: level
    for level, rooms in enumerate(ORDER)
    for room in ([rooms] if isinstance(rooms, str) else rooms)
}
# These serve any training, not only ours.
BELOW = {"errors", "core"}
APART = ("workloads/models/", "workloads/datasets/")
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def parsed(path: Path) -> list[ast.AST]:
    """Returns the syntax of a file, every node of it."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path: Path) -> frozenset[str]:
    """Returns every module that a file imports anywhere in it, and every name that it imports from
    one.
    """
    return frozenset(imports(path))


def imports(path: Path) -> Iterator[str]:
    for node in parsed(path):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom():
                raise AssertionError(f"{path}:{node.lineno}: a relative import")


def rooms_of(names: Iterable[str]) -> set[str]:
    """Returns the packages among these names; `atomo` itself is the top, which no inner module may
    import.
    """
    return {name.split(".")[1] for name in names if name.startswith("atomo.")}


def who_loads(module: str) -> list[str]:
    """Returns the files that import something of a package of others'."""
    return [
        name_of(path)
        for path in MODULES
        if module in {name.partition(".")[0] for name in imported(path)}
    ]


def run(code: str) -> None:
    """Runs `code` in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_room_has_a_place_in_the_order():
    rooms = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert rooms - {"__init__"} == set(LEVEL)


@pytest.mark.slow
def test_every_file_imports_only_what_comes_before():
    for path in MODULES:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in rooms_of(imported(path)) - {room}:
            if room != "__init__":
                message = f"{name_of(path)} imports {other}, which comes after it"
                assert LEVEL[other] < LEVEL[room], message


@pytest.mark.parametrize("folder", APART)
def test_networks_and_data_sets_serve_any_training(folder):
    own = "atomo." + folder.replace("/", ".")
    paths = [path for path in MODULES if name_of(path).startswith(folder)]
    assert paths
    for path in paths:
        others = {name for name in imported(path) if not f"{name}.".startswith(own)}
        assert rooms_of(others) <= BELOW, f"{name_of(path)} imports {others}"


def test_no_module_stands_in_the_place_of_one_of_pythons():
    """Python started in any folder of the source finds its own modules."""
    names = {name_of(path): path.stem for path in MODULES}
    names |= {name_of(path.parent): path.parent.name for path in MODULES if path.parent != PACKAGE}
    taken = {place for place, name in names.items() if name in sys.stdlib_module_names}
    # Python has imported its own `codecs` before it looks into any folder.
    assert taken - {"__main__.py"} == {"codecs"}


def test_families_of_codecs_know_nothing_of_each_other():
    """All families may use `dense`, for tensors that are too small for a codec."""
    families = {path.parent.name for path in PACKAGE.glob("codecs/*/__init__.py")}
    assert "sparse" in families
    table = PACKAGE / "codecs" / "__init__.py"
    for path in set(PACKAGE.glob("codecs/**/*.py")) - {table}:
        known = {name.split(".")[2] for name in imported(path) if name.startswith("atomo.codecs.")}
        others = known & families - {"dense", path.parent.name}
        assert not others, f"{name_of(path)} imports {others}"


def test_only_the_mpi_transport_knows_mpi4py():
    assert who_loads("mpi4py") == ["transports/mpi/library.py"]


def test_numba_and_triton_are_known_in_one_place_each():
    assert who_loads("numba") == ["kernels/jit.py"]
    for name in set(who_loads("triton")) - {"kernels/triton_jit.py"}:
        assert name.startswith("kernels/"), name
        assert name.endswith("/cuda.py"), name


BACKEND = re.compile(r"atomo\.kernels\.\w+\.(cpu|cuda|reference)\b")


def test_only_kernels_import_backends():
    for path in MODULES:
        if not name_of(path).startswith("kernels/"):
            backends = [name for name in imported(path) if BACKEND.match(name)]
            assert not backends, name_of(path)


def test_what_processes_are_joined_by_is_loaded_by_name_alone():
    """A caller that names one transport needs no dependency of the others."""
    assert TRANSPORTS
    for place in TRANSPORTS.values():
        one, own = f"atomo.transports.{place.module}", f"transports/{place.module}/"
        loaders = [name_of(p) for p in MODULES if any(n.startswith(one) for n in imported(p))]
        assert not [name for name in loaders if not name.startswith(own)]


def test_nobody_pickles():
    assert not [module for module in UNSAFE if who_loads(module)]
    for path in MODULES:
        for node in parsed(path):
            match node:
                case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save"):
                    pytest.fail(f"{name_of(path)}:{node.lineno}: torch.{node.attr} pickles")


QUIET = """
import os, random, signal, sys, threading, warnings
import torch
FOREIGN

def seen():
    # Torch and numpy may have started threads of their own by now; the system counts those too.
    tasks = "/proc/self/task"
    return {
        "threads": len(os.listdir(tasks)) if os.path.isdir(tasks) else threading.active_count(),
        "compute threads": torch.get_num_threads(),
        "torch's generator": torch.get_rng_state().tolist(),
        "Python's generator": random.getstate(),
        "warning filters": list(warnings.filters),
        "environment": dict(os.environ),
        "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
    }

before = seen()
import OURS
after = seen()
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
"""
# What others do when they are imported is theirs: they are there before we look.
FOREIGN = (
    "import mpi4py, numba, rich.live, safetensors.torch, torchvision.datasets, torchvision.models"
)
HEAVY = "mpi4py numba triton torchvision sklearn rich tensorboard boto3 botocore yaml"


@pytest.mark.slow
def test_importing_atomo_changes_nothing():
    heavy = f"assert not sys.modules.keys() & set({HEAVY!r}.split())\n"
    # Its public names are looked up when they are used: these are the rooms that they come from.
    run(
        QUIET.replace("FOREIGN", "").replace("OURS", "atomo.api, atomo.codecs, atomo.memory")
        + heavy
    )


def test_a_command_is_ready_for_ctrl_c_before_it_imports_torch():
    """Ctrl-C during the import is caught like at any other time: one exit code, no traceback."""
    run("import sys, atomo.cli, atomo.__main__\nassert 'torch' not in sys.modules")


def test_every_public_name_is_found_where_it_is_said_to_live():
    assert sorted(atomo.HOMES) == sorted(atomo.__all__)
    assert all(getattr(atomo, name) is not None for name in atomo.__all__)
    assert set(atomo.__all__) <= set(dir(atomo))
    with pytest.raises(AttributeError, match="module 'atomo' has no attribute 'encod'"):
        getattr(atomo, "encod")  # noqa: B009


@pytest.mark.slow
def test_starting_a_rank_waits_for_nothing_as_slow_as_torch_itself():
    """Each takes as long to import as torch, and a run has as many processes as ranks."""
    start = "import sys, atomo.cli.rank, atomo.cli.evaluate\n"
    start += "assert 'rich' not in sys.modules\nimport atomo.cli.train\n"  # which shows the run
    used = "from atomo.workloads.datasets import load_dataset\n"
    used += "from atomo.workloads.models import build_model\n"
    used += "data = load_dataset('digits', None)\nbuild_model('LeNet', data.input_shape, 10)\n"
    used += "import torch\nfrom atomo.training.optim.update_rules import Adam, Sgd\n"
    used += "for rule in (Sgd(0.9, False, 0.0), Adam(0.0)):\n"
    used += "    rule.step(torch.ones(3), torch.ones(3), 0.1)\n"
    slow = {"torchvision", "sklearn", "scipy", "torch._dynamo"}
    run(f"{start}{used}assert not sys.modules.keys() & {slow}")


@pytest.mark.slow
def test_importing_every_module_changes_nothing_and_does_not_start_mpi():
    rooms = {".".join(["atomo", *p.relative_to(PACKAGE).with_suffix("").parts]) for p in MODULES}
    names = sorted(name.removesuffix(".__init__") for name in rooms - {"atomo.__main__"})
    assert "atomo.transports.mpi" in names
    started = "from mpi4py import MPI\nassert not MPI.Is_initialized()\n"
    run(QUIET.replace("FOREIGN", FOREIGN).replace("OURS", ", ".join(names)) + started)
