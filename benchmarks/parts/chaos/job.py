"""A training on a virtual cluster, observed from its output: the time of each step."""

from __future__ import annotations

import bisect
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

__all__ = ["Cluster", "Training", "unequal"]

ROOT = Path(__file__).parents[3]
TOOL = [sys.executable, str(ROOT / "tools" / "virtual_cluster.py")]
STEP = re.compile(r"step (\d+)/")
RESTART = "atomo: restart "
RANK, HOST = b"OMPI_COMM_WORLD_RANK", b"PMIX_HOSTNAME"
LAST_S = 10.0  # the wait for the last lines of an ended process
KINDS = {
    "": "workers",
    "images_": "images_used",
}  # prefix -> the counter of used gradients or images
CAME_TO = ("late", "refused", "lost", "under_way")


@final
class Cluster:
    """Virtual hosts on this machine."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.hosts = [f"h{number}" for number in range(1, hosts + 1)]
        self._environment = {**os.environ, "ATOMO_CLUSTERS": str(folder)}
        self.does("up", "--hosts", str(hosts), "--rate", "1gbit")
        self.hostfile = folder / "virtual" / "hosts_address"

    def does(self, *words: str) -> None:
        """Runs one command of the tool."""
        subprocess.run(
            [*TOOL, *words], env=self._environment, stdout=subprocess.DEVNULL, check=True
        )

    def starts(self, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Starts a command on the first host, with additional environment variables."""
        return subprocess.Popen(
            [*TOOL, "exec", self.hosts[0], *words],
            env={**self._environment, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip


@final
class Training:
    """A running job; times are those of `time.monotonic`."""

    def __init__(
        self, cluster: Cluster, folder: Path, options: Sequence[str], hooks: Path | None = None
    ) -> None:
        """Starts the job.

        Args:
            cluster: hosts of the job.
            folder: folder of the run.
            options: options of `atomo train`, in addition to those of all runs.
            hooks: folder with a `sitecustomize.py` for the ranks.
        """
        self.folder = folder
        self.steps: list[float] = []
        """Time of the report of each step; a repeated step has several."""
        self._furthest: list[int] = []  # the last step at the time of each report
        self.restarts: list[float] = []
        self.output: list[str] = []
        """Lines of the output other than steps."""
        words = [sys.executable, "-m", "atomo", "train", "--threads=1", "--evaluator=none"]
        words += [f"--hostfile={cluster.hostfile}", f"--train-dir={folder}", "--log-interval=1"]
        words += ["--epochs=1000000", "--max-steps=100000000", "--max-restarts=100000", *options]
        environment = {"OMP_NUM_THREADS": "1"}
        if hooks is not None:
            words += ["--mpi-args=-x PYTHONPATH"]
            environment["PYTHONPATH"] = str(hooks)
        self._process = cluster.starts(words, environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            now, match = time.monotonic(), STEP.match(line)
            if match:
                self._furthest.append(max(self.furthest(), int(match[1])))
                self.steps.append(now)
                continue
            if line.startswith(RESTART):
                self.restarts.append(now)
            self.output.append(line.rstrip())

    @property
    def code(self) -> int | None:
        """The exit code of the training; None while it runs."""
        return self._process.poll()

    def useful(self, since: float, to: float) -> int:
        """Returns the number of new steps between two times."""
        return max(0, self.furthest(to) - self.furthest(since))

    def furthest(self, at: float = math.inf) -> int:
        """Returns the last step until a time."""
        until = bisect.bisect_right(self.steps, at)
        return self._furthest[until - 1] if until else 0

    def after(self, moment: float) -> list[float]:
        """Returns the times of the reports of steps since a time."""
        return self.steps[bisect.bisect_right(self.steps, moment) :]

    def ranks(self) -> dict[int, int]:
        """Returns the process of each live rank."""
        return {rank: process for rank, (process, _) in self._processes().items()}

    def hosts(self) -> set[str]:
        """Returns the hosts that have ranks."""
        return {host for _, host in self._processes().values()}

    def _processes(self) -> dict[int, tuple[int, str]]:
        """Returns the process and the host of each live rank."""
        processes = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                command = (entry / "cmdline").read_bytes()
                if b"\0rank\0" in command and f"--train-dir={self.folder}\0".encode() in command:
                    names = dict(
                        word.split(b"=", 1)
                        for word in (entry / "environ").read_bytes().split(b"\0")
                        if b"=" in word
                    )
                    if RANK in names:  # mpirun has the same words on its command line
                        processes[int(names[RANK])] = int(entry.name), names[HOST].decode()
        return processes

    def end(self, patience_s: float) -> int | None:
        """Makes the training write a checkpoint and end; returns its exit code, or None if it
        hangs.
        """
        if self.code is None:
            self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return None
        self._reader.join(LAST_S)
        return code

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of `metrics.jsonl`, if there is one."""
        path = self.folder / "metrics.jsonl"
        return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []


def unequal(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the steps at which gradients or images are not accounted for."""
    steps, before = list[int](), dict.fromkeys(KINDS, 0)
    for line in lines:
        for kind, used in KINDS.items():
            came_to = sum(line[kind + name] for name in CAME_TO) + line[used]
            if before[kind] + line[kind + "asked"] != came_to:
                steps.append(int(line["step"]))
            before[kind] = line[kind + "under_way"]
    return [*dict.fromkeys(steps)]
