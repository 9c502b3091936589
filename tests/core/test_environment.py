"""Resources that a process may lack: its streams, its home, a folder for compiled kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import caching

from atomo.core.process.environment import prepare_environment
from atomo.kernels.jit import jit

# A program whose one command prints a lot.
PROGRAM = """
import sys
from atomo.core.process.program import dispatch
def act(name, words):
    sys.stdout.write("a line\\n" * 100_000)
    return 0
sys.exit(dispatch("p", {"print": ""}, str, str, act, sys.argv[1:]))
"""


def shell(line: str) -> "subprocess.CompletedProcess[str]":
    """Runs a line as typed at a shell, in which P is the program."""
    return subprocess.run(
        ["bash", "-c", line.replace("P ", '"$0" -c "$1" ', 1), sys.executable, PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("P print <&- >&- 2>&-", 0, ""),
        ("P print > /dev/full", 1, "p print: cannot write the output: No space left on device\n"),
        ("P print | true; exit ${PIPESTATUS[0]}", 130, ""),
    ],
)
def test_an_output_that_is_closed_or_full_is_a_clear_end(line, code, message):
    done = shell(line)
    assert (done.returncode, done.stderr) == (code, message)


def test_the_number_of_a_closed_stream_goes_to_no_other_file(tmp_path):
    code = "from atomo.core.process.environment import prepare_environment as prepare; prepare(); "
    code += "f = open('kept', 'w'); import os; "
    code += "os.write(1, b'for people'); f.close()"
    line = f'exec "{sys.executable}" -c "{code}" >&-'
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    assert (tmp_path / "kept").read_bytes() == b""


def test_who_has_no_home_is_at_home_in_the_root(monkeypatch):
    monkeypatch.delenv("HOME")
    prepare_environment()
    assert os.environ["HOME"] == "/"


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("planted", [False, True])
def test_loops_run_where_nothing_can_be_kept(planted, tmp_path, monkeypatch):
    """The cache is neither next to the source nor at home. Files of other users in it
    are not run.
    """

    class Nowhere(caching.UserWideCacheLocator):
        def ensure_cache_path(self) -> None:
            raise PermissionError(13, "planted")

    classes = [caching.UserProvidedCacheLocator, Nowhere]
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", classes)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"atomo-{os.geteuid()}"
    if planted:
        folder.mkdir()
        folder.chmod(0o777)
    assert jit(double).compiled(21) == 42  # type: ignore[attr-defined]
    assert bool(list(folder.rglob("*.nbi"))) is not planted
    assert Path(folder).stat().st_mode & 0o077 == (0o077 if planted else 0)
