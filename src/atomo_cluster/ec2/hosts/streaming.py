"""Remote commands with output line by line, as it is printed."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from threading import Thread
from typing import Any

from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh
from atomo_cluster.visible import visible

__all__ = ["LineHandler", "relay_output", "run_streaming"]

LineHandler = Callable[[Host, str], None]


def run_streaming(ssh: Ssh, host: Host, command: str, on_line: LineHandler) -> Answer:
    """Runs a shell command on a host; passes lines of both streams to `each` and collects them."""
    out: list[str] = []
    err: list[str] = []
    with subprocess.Popen(
        ssh.words(host, command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace",
    ) as process:  # fmt: skip
        beside = Thread(target=gather, args=(process.stderr or (), err, host, on_line))
        beside.start()
        gather(process.stdout or (), out, host, on_line)
        beside.join()
    return Answer(host, process.returncode, "".join(out), "".join(err))


def relay_output(words: Sequence[str], *, as_json: bool) -> int:
    """Runs a command and prints its output lines as they arrive, without control characters.

    Args:
        words: the command line.
        as_json: its output goes to stderr, since stdout is for the JSON document.

    Returns:
        The exit code.
    """
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            beside = Thread(target=copy, args=(process.stderr or (), sys.stderr), daemon=True)
            beside.start()
            copy(process.stdout or (), sys.stderr if as_json else sys.stdout)
            beside.join()
        except BaseException:  # as `subprocess.call` does: nobody hears the command any more
            process.kill()
            raise
    return process.returncode


def copy(stream: Iterable[str], out: Any) -> None:
    """Prints the lines of a stream until it ends."""
    for line in stream:
        out.write(visible(line))
        out.flush()


def gather(stream: Iterable[str], lines: list[str], host: Host, on_line: LineHandler) -> None:
    """Passes the lines of a stream to `each` and collects them, until the stream ends."""
    for line in stream:
        lines.append(line)
        on_line(host, line.rstrip("\n"))
