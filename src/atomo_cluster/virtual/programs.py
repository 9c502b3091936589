"""The system's programs, and running them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import MappingProxyType

from atomo_cluster.errors import Failed, Refused

__all__ = ["PACKAGES", "batch", "find", "missing", "python", "run"]

PACKAGES = MappingProxyType(
    {
        "ip": "iproute2",
        "tc": "iproute2",
        "mount": "mount",
        "unshare": "util-linux",
        "ssh": "openssh-client",
        "ssh-keygen": "openssh-client",
        "sshd": "openssh-server",
    }
)
PROGRAM_S = 120.0  # each of them takes milliseconds on an idle machine
ADMIN = "/usr/local/sbin:/usr/sbin:/sbin"  # not on everybody's PATH


def find(program: str) -> str | None:
    """Returns the path of a program; None if it is not installed."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{ADMIN}")


def missing() -> list[str]:
    """Lists the missing programs, each with its package."""
    return [f"{name} (package {package})" for name, package in PACKAGES.items() if not find(name)]


def python(script: os.PathLike[str]) -> list[str]:
    """Returns the command prefix that runs our script, isolated from PYTHONPATH and its like."""
    return [sys.executable, "-E", "-s", os.fspath(script)]


def run(
    program: str,
    *arguments: str | os.PathLike[str],
    text: str = "",
    before: Callable[[], None] | None = None,
) -> str:
    """Runs a program and returns its output.

    Args:
        program: its name.
        arguments: its arguments.
        text: its input.
        before: called in the new process, e.g. to enter namespaces.

    Raises:
        Failed: the program failed; the message has its stderr.
        Refused: the program is not installed.
    """
    path = find(program)
    if path is None:
        raise Refused(f"there is no {program} here: install {PACKAGES[program]}")
    words = " ".join([program, *map(str, arguments)])
    try:
        done = subprocess.run(
            [path, *arguments], input=text, capture_output=True, text=True, preexec_fn=before,
            check=False, timeout=PROGRAM_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{words}` does not end within {PROGRAM_S:g} s") from error
    if done.returncode:
        raise Failed(f"`{words}` ended with {done.returncode}: {done.stderr.strip() or 'no word'}")
    return done.stdout


def batch(program: str, lines: Sequence[str], before: Callable[[], None] | None = None) -> None:
    """Runs lines of `ip` or `tc` in one call, which stops at the first failure."""
    run(program, "-batch", "-", text="".join(f"{line}\n" for line in lines), before=before)
