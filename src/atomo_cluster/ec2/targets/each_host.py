"""A shell command on each of several hosts, and the report of its results."""

from dataclasses import asdict

from atomo_cluster.ec2.hosts.ssh import UNREACHED, Answer, Host, on_all_hosts
from atomo_cluster.ec2.hosts.streaming import LineHandler, run_streaming
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.targets.selection import host_keys, ssh_of
from atomo_cluster.errors import RemoteError

__all__ = ["finish", "heading", "live", "on_each", "record", "show"]


def live(run: Run) -> LineHandler:
    """Returns a function that prints a line with its host."""

    def each(host: Host, line: str) -> None:
        run.say(f"{host.name}: {line}")

    return each


def on_each(
    run: Run, hosts: list[Host], command: str, on_line: LineHandler | None = None
) -> list[Answer]:
    """Runs a command on hosts with pinned keys; passes lines to `each` as they arrive."""
    ssh = ssh_of(run)
    keys = host_keys(run, ssh)

    def one(host: Host) -> Answer:
        try:
            keys.pin(host)
        except RemoteError as error:
            return Answer(host, 255, "", str(error))
        if on_line:
            return run_streaming(ssh, host, command, on_line)
        return ssh.run(host, command, timeout_s=None)  # unbounded: the command is the user's

    return on_all_hosts(hosts, one)


def show(run: Run, answers: list[Answer]) -> None:
    """Shows the output of each host."""
    for answer in answers:
        run.say(heading(answer))
        for text in (answer.out, answer.err if answer.code != UNREACHED else ""):
            if text.strip():
                run.say(text.rstrip())
    record(run, answers)


def heading(answer: Answer) -> str:
    """Formats a host with its error."""
    verdict = "" if not answer.code else f" FAILED: {answer.complaint()}"
    return f"--- {answer.host.name} ({answer.host.id}){verdict}"


def record(run: Run, answers: list[Answer]) -> None:
    """Adds the output of each host to the JSON document."""
    run.tell([{"host": asdict(answer.host), "code": answer.code, "out": answer.out,
               "err": answer.err} for answer in answers])  # fmt: skip


def finish(answers: list[Answer], shown: bool = True) -> None:
    """Raises RemoteError if a host failed; includes the reasons unless they were `shown`."""
    bad = [answer for answer in answers if answer.code]
    if bad:
        named = [
            f"{failure.host.name}{'' if shown else f': {failure.complaint()}'}" for failure in bad
        ]
        raise RemoteError(f"failed on {len(bad)} of {len(answers)} hosts: {', '.join(named)}")
