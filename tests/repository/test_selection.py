"""Slow tests are left out and counted, jobs take turns, and every process of a run is strict."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import conftest
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from atomo.codecs import make_codec

SUITE = """
import os, pathlib, signal
import pytest

def note(what):
    with open("log", "a") as log:
        log.write(f"{what} {os.getpid()}\\n")

@pytest.mark.parametrize("n", range(40))
def test_quick(n):
    note("quick")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

@pytest.mark.slow
@pytest.mark.parametrize("n", range(3))
def test_slow(n):
    note("slow")

@pytest.mark.long
def test_long():
    note("long")
"""
JOB = """
from test_one import note, pytest

@pytest.mark.parametrize("n", range(4))
def test_job(n):
    note("job")
"""
MARKED = '@pytest.mark.long(cases=("3",))\n'
ABSENT = '@pytest.mark.slow(cases=("40",))\n'
SETTINGS = """[pytest]
pythonpath = tests
addopts = --strict-markers
markers =
    slow: s
    long: l
"""
# These stand in for the real ones, which take their time; so do plugins that nothing here needs.
TORCH = """
class cuda:
    is_available = staticmethod(lambda: False)

def set_num_threads(n): pass
"""
CHECKS = "def install(): pass\n"
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Returns a small suite under this one's rules."""
    for name in ("cluster/virtual", "cli"):
        (tmp_path / "tests" / name).mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "test_one.py").write_text(SUITE)
    (tmp_path / "tests" / "cli" / "test_three.py").write_text(JOB)
    (tmp_path / "tests" / "cluster/virtual" / "test_two.py").write_text(
        "import pytest\n\n@pytest.mark.slow\ndef test_cluster(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "tests" / "support").mkdir()
    (tmp_path / "tests" / "support" / "checks.py").write_text(CHECKS)
    return tmp_path


def run_pytest(suite: Path, *words: str) -> tuple[str, list[list[str]]]:
    """Runs a suite where SIGINT is ignored; returns pytest's last lines, and the log of
    the tests.
    """
    (suite / "log").write_text("")
    done = run(suite, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    end = "\n".join(done.stdout.splitlines()[-3:])
    return end, [line.split() for line in (suite / "log").read_text().splitlines()]


def run(suite: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest"]
    return subprocess.run(
        [*line, "-p", "no:cacheprovider", "-p", "xdist", *words],
        cwd=suite, env=os.environ | ALONE, capture_output=True, text=True, check=False,
    )  # fmt: skip


TWO = ("-n", "2")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [TWO, ()], ids=["two", "one"])
def test_slow_tests_are_left_out_and_counted(suite, processes):
    end, notes = run_pytest(suite, *processes)
    lines = r"44 passed in .*\nslow tests left out: 4; .*--all .*\nlong tests left out: 1; .*--long"
    assert re.search(lines, end), end
    assert {what for what, _ in notes} == {"quick", "job"}


@pytest.mark.slow
def test_all_runs_them_and_jobs_take_turns_in_one_process(suite):
    end, notes = run_pytest(suite, *TWO, "--all")
    assert "48 passed" in end
    assert "slow tests" not in end
    assert "long tests left out: 1" in end
    assert len({process for what, process in notes if what == "job"}) == 1
    assert len({process for _, process in notes}) == 2


@pytest.mark.slow
def test_long_runs_them_all(suite):
    end, notes = run_pytest(suite, *TWO, "--long")
    assert "49 passed" in end
    assert "left out" not in end
    assert {what for what, _ in notes} == {"quick", "slow", "long", "job"}


def test_a_slow_test_that_is_named_runs(suite):
    end, notes = run_pytest(
        suite, "tests/test_one.py::test_slow", "tests/cluster/virtual/test_two.py"
    )
    assert "3 passed" in end
    assert "slow tests left out: 1" in end
    assert len(notes) == 3


@pytest.mark.slow
def test_cases_that_a_mark_names_are_there(suite):
    tests = suite / "tests" / "test_one.py"
    tests.write_text(SUITE.replace("@pytest.mark.param", MARKED + "@pytest.mark.param", 1))
    end, _ = run_pytest(suite)
    # Cases 3 and 30 to 39.
    assert " 33 passed" in end
    assert "long tests left out: 12" in end
    tests.write_text(SUITE.replace("@pytest.mark.param", ABSENT + "@pytest.mark.param", 1))
    done = run(suite)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_quick has no case 40, which its mark names" in done.stderr


def test_places_with_rules_of_their_own_are_there():
    for place in {*sum(conftest.GROUPS.values(), conftest.UNCOMPILED)}:
        file, _, test = place.partition("::")
        path = Path(__file__).parents[1] / file
        assert path.exists(), place
        assert not test or f"def {test}" in path.read_text(), place


def test_a_warning_a_wrong_type_and_a_hang_fail_a_test(request):
    with pytest.raises(UserWarning):
        warnings.warn("planted", UserWarning, stacklevel=1)
    with pytest.raises(TypeCheckError):
        make_codec("fp16").encode(torch.ones(2, 3), "no generator")  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintViolation):  # where there are no shapes
        make_codec(16)  # type: ignore[arg-type]
    assert float(request.config.getini("timeout")) > 0


def test_the_files_of_the_benchmark_of_flaky_tests_exist():
    root = Path(__file__).parents[2]
    suite = runpy.run_path(str(root / "benchmarks" / "flakes.py"))["SUITE"]
    assert not [file for file in suite if not (root / file).is_file()]
