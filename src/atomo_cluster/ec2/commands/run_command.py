"""`run_command`: runs a shell command on hosts."""

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Final

from atomo_cluster.ec2.commands.bootstrap import add_hostfile
from atomo_cluster.ec2.hosts.ssh import UNREACHED, Answer, Host, everywhere
from atomo_cluster.ec2.hosts.streaming import Each, streamed
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.targets import cluster_hosts, host_keys, reach, select
from atomo_cluster.errors import RemoteError

HELP: Final = """\
  pytorch_ec2.py run_command all uptime
  pytorch_ec2.py run_command workers 'nvidia-smi --list-gpus' --json
  pytorch_ec2.py run_command i-0abc,i-0def 'df -h /'

HOSTS is all, master, workers, or identifiers or aliases with commas between. Runs on all of them at
the same time, shows each line as it comes, with its host, and ends with 11 if it failed on one."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOSTS", help="where")
    parser.add_argument("command", metavar="COMMAND", help="what, for the hosts' shell")
    add_hostfile(parser)


def run(run: Run) -> int:
    chosen = select(cluster_hosts(run), run.options.hosts)
    answers = on_each(run, chosen, run.options.command, live(run))
    for answer in answers:
        if answer.code:
            run.say(heading(answer))
    record(run, answers)
    finish(answers)
    return 0


def live(run: Run) -> Each:
    """Returns a function that prints a line with its host."""

    def each(host: Host, line: str) -> None:
        run.say(f"{host.alias}: {line}")

    return each


def on_each(run: Run, hosts: list[Host], command: str, each: Each | None = None) -> list[Answer]:
    """Runs a command on hosts with pinned keys; passes lines to `each` as they arrive."""
    ssh = reach(run)
    keys = host_keys(run, ssh)

    def one(host: Host) -> Answer:
        try:
            keys.pin(host)
        except RemoteError as error:
            return Answer(host, 255, "", str(error))
        return streamed(ssh, host, command, each) if each else ssh.run(host, command)

    return everywhere(hosts, one)


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
    return f"--- {answer.host.alias} ({answer.host.id}){verdict}"


def record(run: Run, answers: list[Answer]) -> None:
    """Adds the output of each host to the JSON document."""
    run.tell([{"host": asdict(one.host), "code": one.code, "out": one.out, "err": one.err}
              for one in answers])  # fmt: skip


def finish(answers: list[Answer], shown: bool = True) -> None:
    """Raises RemoteError if a host failed; includes the reasons unless they were `shown`."""
    bad = [answer for answer in answers if answer.code]
    if bad:
        named = [f"{one.host.alias}{'' if shown else f': {one.complaint()}'}" for one in bad]
        raise RemoteError(f"failed on {len(bad)} of {len(answers)} hosts: {', '.join(named)}")
