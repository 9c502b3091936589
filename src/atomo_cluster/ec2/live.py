"""A command on a host, whose lines are told as they come."""

import subprocess
from collections.abc import Callable, Iterable
from threading import Thread

from atomo_cluster.ec2.remote import Answer, Host, Ssh

__all__ = ["Each", "streamed"]

Each = Callable[[Host, str], None]


def streamed(ssh: Ssh, host: Host, command: str, each: Each) -> Answer:
    """Runs a shell command on a host; lines of both streams are told as they come, and kept."""
    out: list[str] = []
    err: list[str] = []
    with subprocess.Popen(
        ssh.words(host, command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace",
    ) as process:  # fmt: skip
        beside = Thread(target=gather, args=(process.stderr or (), err, host, each))
        beside.start()
        gather(process.stdout or (), out, host, each)
        beside.join()
    return Answer(host, process.returncode, "".join(out), "".join(err))


def gather(stream: Iterable[str], kept: list[str], host: Host, each: Each) -> None:
    """Tells and keeps the lines of a stream until it ends."""
    for line in stream:
        kept.append(line)
        each(host, line.rstrip("\n"))
