"""Remote commands with output line by line, as it is printed."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from threading import Thread
from typing import Any, Final

from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh
from atomo_cluster.visible import visible

__all__ = ["LineHandler", "relay_output", "run_streaming"]

LAST_WORDS_S: Final = 10.0  # for errors after the end of the command
KILLED_S: Final = 10.0  # for the end of a command that was killed
LineHandler = Callable[[Host, str], None]
StreamHandler = Callable[[Iterable[str]], None]


def run_streaming(ssh: Ssh, host: Host, command: str, on_line: LineHandler) -> Answer:
    """Runs a shell command on a host; passes lines of both streams to `on_line`, collects them."""
    out: list[str] = []
    err: list[str] = []
    code = relay(
        ssh.words(host, command),
        lambda stream: gather(stream, out, host, on_line),
        lambda stream: gather(stream, err, host, on_line),
    )
    return Answer(host, code, "".join(out), "".join(err))


def relay_output(words: Sequence[str], *, as_json: bool) -> int:
    """Runs a command and prints its output lines as they arrive, without control characters.

    Args:
        words: the command line.
        as_json: its output goes to stderr, since stdout is for the JSON document.

    Returns:
        The exit code.
    """
    out = sys.stderr if as_json else sys.stdout
    return relay(words, lambda stream: copy(stream, out), lambda stream: copy(stream, sys.stderr))


def relay(words: Sequence[str], on_out: StreamHandler, on_err: StreamHandler) -> int:
    """Runs a command of the user, which may take days, and returns its exit code.

    ssh ends where the host does not answer. A child of ssh, such as its ProxyCommand, may keep the
    pipe of the errors open: their reader is left to itself then. After Ctrl-C nobody hears the
    command any more, so it is killed.
    """
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace",
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    errors = Thread(target=read, args=(process.stderr, on_err), daemon=True)
    try:
        errors.start()
        read(process.stdout, on_out)
        code = process.wait()  # unbounded: the command is the user's
    except BaseException:
        process.kill()
        process.wait(KILLED_S)
        raise
    errors.join(LAST_WORDS_S)
    return code


def read(stream: Any, handle: StreamHandler) -> None:
    """Passes a stream to its handler, and closes it."""
    with stream:
        handle(stream)


def copy(stream: Iterable[str], out: Any) -> None:
    """Prints the lines of a stream until it ends."""
    for line in stream:
        out.write(visible(line))
        out.flush()


def gather(stream: Iterable[str], lines: list[str], host: Host, on_line: LineHandler) -> None:
    """Passes the lines of a stream to `on_line` and collects them, until the stream ends."""
    for line in stream:
        lines.append(line)
        on_line(host, line.rstrip("\n"))
