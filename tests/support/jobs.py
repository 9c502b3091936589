"""Real jobs for tests: the command as a user runs it, watched through its output."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_S = 600.0  # only a hang takes as long, on any loaded machine
POLL_S = 0.05
MARK = "ATOMO_TEST_JOB"  # in the environment of a job and of all that descends from it


def until(condition: Callable[[], object], what: str) -> None:
    """Waits for a condition, and fails if it does not come true in time."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(POLL_S)


def descendants(pid: int) -> list[int]:
    """Returns the processes that `pid` started, and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def alive(pid: int) -> bool:
    """True if a process runs: a zombie does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Job:
    """A command under way."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str] | None = None):
        self._log, self._mark = log, uuid.uuid4().hex
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "COLUMNS": "200",
                    MARK: self._mark,
                    **(env or {}),
                },
            )

    @property
    def output(self) -> str:
        """The output of the job so far."""
        return self._log.read_text(errors="replace")

    def family(self) -> list[int]:
        """Returns the processes that are still there, also those whose parent is gone."""
        entry, found = f"{MARK}={self._mark}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process has just ended, or belongs to another user
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def kill(self) -> None:
        """Kills every process, at once and for certain."""
        while family := self.family():
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def says(self, text: str) -> None:
        """Waits until it has printed `text`."""
        until(lambda: text in self.output or self.process.poll() is not None, repr(text))
        assert text in self.output, self.output

    def ends(self) -> int:
        """Waits for its end and returns its exit code."""
        until(lambda: self.process.poll() is not None, "the job to end")
        return self.process.wait()


@contextmanager
def started(
    words: Sequence[str],
    log: Path,
    *,
    program: Sequence[str] = ("-m", "atomo"),
    env: dict[str, str] | None = None,
) -> Iterator[Job]:
    """A job of this interpreter, of which nothing is left after the block."""
    job = Job([sys.executable, *program, *words], log, env)
    try:
        yield job
    finally:
        job.kill()


def faults(folder: Path, sources: Mapping[int, str]) -> dict[str, str]:
    """Returns an environment in which a rank runs some source before anything else.

    Python runs a module called sitecustomize first of all: no hook in the product is needed.
    """
    folder.mkdir()
    chosen = (
        f"if os.environ.get('OMPI_COMM_WORLD_RANK') == '{rank}':\n    exec({source!r})\n"
        for rank, source in sources.items()
    )
    (folder / "sitecustomize.py").write_text("import os\n" + "".join(chosen))
    return {"PYTHONPATH": str(folder)}


def run(words: Sequence[str], log: Path, **how: object) -> tuple[int, str]:
    """Runs a job to its end: exit code and output."""
    with started(words, log, **how) as job:  # type: ignore[arg-type]
        code = job.ends()
        return code, job.output
