"""The virtual cluster's command as a user calls it, and the traces of a cluster on the machine."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.jobs import Job, until

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tools" / "virtual_cluster.py"
PATIENCE_S = 600.0  # for a command that is known to end


def why_not() -> str:
    """Returns why no cluster can run on this machine; empty if one can."""
    done = call(["check"], {})
    return "" if done.returncode == 0 else done.stdout.strip() or done.stderr.strip()


def call(
    words: Sequence[str | os.PathLike[str]],
    environment: dict[str, str],
    before: Sequence[str] = (),
    python: str = sys.executable,
) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end."""
    return subprocess.run(
        [*before, python, SCRIPT, *words],
        cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Lets run_pytorch.sh find this Python installed, with whatever else is on the machine."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    project = (ROOT / "pyproject.toml").read_bytes()
    stamp = subprocess.run(["cksum"], input=project, capture_output=True, check=True).stdout
    (folder / "installed").write_text(f"{stamp.decode().strip()} \n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"ATOMO_VENV": str(folder), "ATOMO_EXTRAS": "", "PATH": path}


class Tool:
    """The command, for clusters in one folder."""

    def __init__(
        self, clusters: Path, before: Sequence[str] = (), python: str = sys.executable
    ) -> None:
        self.clusters, self._before, self._python = clusters, before, python
        self.environment = {"ATOMO_CLUSTERS": str(clusters)}

    def __call__(self, *words: str | os.PathLike[str]) -> "subprocess.CompletedProcess[str]":
        return call(words, self.environment, self._before, self._python)

    def does(self, *words: str | os.PathLike[str]) -> str:
        """Returns the output of a command that must succeed."""
        done = self(*words)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def refuses(self, *words: str | os.PathLike[str]) -> str:
        """Returns the message of a command that must exit with 2."""
        done = self(*words)
        assert done.returncode == 2, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stderr

    def host(self, name: str, cluster: str = "virtual") -> dict[str, Any]:
        """Returns the entry of a host in the output of `status`."""
        hosts = json.loads(self.does("status", "--json", "--name", cluster))["hosts"]
        return next(host for host in hosts if host["name"] == name)

    def start(self, log: Path, *words: str | os.PathLike[str], **environment: str) -> Job:
        """Returns a command under way."""
        line = [*self._before, self._python, str(SCRIPT), *map(str, words)]
        return Job(line, log, {**self.environment, **environment})

    def processes(self) -> list[str]:
        """Returns the command lines of all processes that were started in this folder and still
        run.
        """
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if f"{self.clusters}/" in line:
                    found.append(line)
        return found

    def leaves_nothing(self) -> None:
        """Waits until no process is left, and checks that no file is left."""
        until(lambda: not self.processes(), f"the end of {self.processes()}")
        left = [path for path in self.clusters.rglob("*") if path.is_file()]
        assert not left


def machine() -> dict[str, str]:
    """Returns the state of the machine that a cluster could leave changed: interfaces, mounts,
    names.
    """
    asked = {"links": ["ip", "-o", "link"], "mounts": ["cat", "/proc/self/mounts"],
             "namespaces": ["ip", "netns"], "name": ["uname", "-n"],
             "hosts": ["cat", "/etc/hosts"]}  # fmt: skip
    return {
        name: subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, command in asked.items()
    }
