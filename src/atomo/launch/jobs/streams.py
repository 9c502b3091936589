"""Output of a job's processes, line by line, in one queue."""

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

__all__ = ["EVENT_MARK", "GRACE_S", "Line", "Process"]

EVENT_MARK = "\x1e"  # begins a line that is a record, among other output of a process
RULE = "-" * 60  # mpirun frames its own remarks with rules longer than this
GRACE_S = 10.0  # time for mpirun to end the ranks on every host
NOISE = ("MPI_ABORT was invoked", "prterun has exited", "mpirun has exited")


@dataclass(frozen=True)
class Line:
    """One line, or the end of a process's output."""

    source: str
    text: str | None  # None: the end of the output


@final
class Process:
    """A child process in its own session: Ctrl-C at the terminal reaches only the launcher."""

    def __init__(self, name: str, command: Sequence[str], lines: "queue.SimpleQueue[Line]") -> None:
        self.name = name
        self.handle = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self.handle.stdout is not None
        self._stdout = self.handle.stdout
        self._reader = threading.Thread(
            target=forward_lines, args=(name, self._stdout, lines), daemon=True
        )
        self._reader.start()

    def wait(self) -> int:
        """Waits for the end of the process and its output in the queue; returns its exit code."""
        code = self.handle.wait()
        self._reader.join()
        self._stdout.close()
        return code if code >= 0 else 128 - code

    @property
    def killed_by(self) -> int:
        """The signal that killed the process; 0: it runs, or ended by itself."""
        return max(0, -(self.handle.poll() or 0))

    def stopped(self) -> bool:
        """True if the process is stopped, as by SIGSTOP."""
        try:
            stat = Path(f"/proc/{self.handle.pid}/stat").read_text()
        except OSError:  # it has ended, or there is no /proc
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def end(self) -> None:
        """Ends the process and its children on this host: by SIGTERM, then by SIGKILL."""
        self.handle.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.handle.wait(GRACE_S)
        self.kill()
        self._reader.join(GRACE_S)
        if not self._reader.is_alive():  # otherwise a process outside the session holds the pipe
            self._stdout.close()

    def kill(self) -> None:
        """Kills all processes of the session: an ssh to a lost host would otherwise stay."""
        for pid in session_processes(self.handle.pid):
            with suppress(OSError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        self.handle.kill()
        self.handle.wait()


def session_processes(leader: int) -> Iterator[int]:
    """Yields the processes of a session; on systems without /proc, none."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if os.getsid(int(entry.name)) == leader:
                yield int(entry.name)


def forward_lines(name: str, stream: Iterable[str], lines: "queue.SimpleQueue[Line]") -> None:
    """Puts every line into the queue, then the end.

    mpirun's remarks on an abort are left out: the rank that aborted has printed the reason.
    """
    remark: list[str] | None = None
    for raw in stream:
        text = raw.rstrip("\n").strip("\0")  # which mpirun adds to its own last line
        if text.startswith(RULE):
            if remark is not None and not any(noise in line for line in remark for noise in NOISE):
                for line in remark:
                    lines.put(Line(name, line))
            remark = [] if remark is None else None
        elif remark is not None and not text.startswith((EVENT_MARK, "atomo: ")):
            remark.append(text)
        elif text.strip():
            lines.put(Line(name, text))
    for line in remark or ():
        lines.put(Line(name, line))
    lines.put(Line(name, None))
