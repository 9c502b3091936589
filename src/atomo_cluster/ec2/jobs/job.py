"""Training jobs: their scripts, the commands that control them, and the end of Python."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["ABSENT", "BUSY", "KILL", "LOST", "TAKEN", "Job", "job_command", "jobs_in",
           "leave_command", "script_of"]  # fmt: skip

# The brackets keep a pattern from matching the shell that looks for it.
LAUNCHER: Final = "[-]m atomo train"
BUSY: Final = "pgrep -f -- '[-]m atomo (train|rank)' >/dev/null"
KILL: Final = """\
pkill -TERM -u "$(id -u)" -x 'python[0-9.]*' || exit 0
for second in 1 2 3 4 5 6 7 8 9 10; do
  pgrep -u "$(id -u)" -x 'python[0-9.]*' >/dev/null || exit 0
  sleep 1
done
pkill -KILL -u "$(id -u)" -x 'python[0-9.]*' || true"""
SCRIPT: Final = SCRIPTS / "job.sh"
# Exit codes of job.sh.
TAKEN: Final = 75
ABSENT: Final = 66
LOST: Final = 70


@dataclass(frozen=True)
class Job:
    """A job on the master. Times are Unix seconds; None: not yet, or unknown."""

    number: int
    state: str  # queued, running, stopping, done, failed, stopped, or lost: it ended without a word
    code: int | None
    made: int | None
    started: int | None
    ended: int | None
    shown: str  # its command, shortened


def jobs_in(text: str) -> list[Job]:
    r"""Parses the output of `job.sh list`.

    >>> jobs_in("1\tfailed\t3\t10\t11\t19\t--epochs 2")[0].ended
    19
    """
    return [job_in(line) for line in text.splitlines()]


def job_in(line: str) -> Job:
    """Parses a line of `job.sh list`."""
    number, state, *fields, shown = line.split("\t", 6)
    code, made, started, ended = [int(word) if word else None for word in fields]
    return Job(int(number), state, code, made, started, ended, shown)


def job_command(cluster: Cluster, verb: str, *words: str) -> str:
    """Builds the shell command of a job.sh verb; job.sh travels in it, so any checkout will do."""
    line = shlex.join(["bash", "-c", SCRIPT.read_text(), "job", verb, *words])
    return f"cd {cluster.remote_dir} && {line}"


def script_of(cluster: Cluster, hosts: int, network: str, words: Sequence[str]) -> str:
    """Builds the script of a job; it runs in the checkout of the master.

    `network` is the CIDR that MPI uses: images have bridges, such as Docker's, with the same
    address on all hosts, and MPI would hang on them. Options in `words` take precedence.
    """
    options_given = {word.partition("=")[0] for word in words}
    options = [] if "--n" in options_given else ["--n", str(hosts)]
    options += [] if "--hostfile" in options_given else ["--hostfile", "hosts_address"]
    options += [] if "--train-dir" in options_given else ["--train-dir", f"{cluster.out_dir}/train"]
    if network and "--mpi-args" not in options_given:
        keep = f"--mca btl_tcp_if_include {network} --prtemca prte_if_include {network}"
        options += [f"--mpi-args={keep}"]
    line = shlex.join(["bash", "run_pytorch.sh", *options, *words])
    commands = [*cluster.master_pre_commands, *(cluster.train_commands or [line])]
    return "\n".join(["set -e", *commands]) + "\n"


def leave_command(wait_s: int) -> str:
    """Builds the shell command that makes a training on this host write a checkpoint and end.

    The signal goes only to the launcher, which forwards it: a killed rank would abort the run.
    """
    return f"""\
job=(-u "$(id -u)" -f -- '{LAUNCHER}')
pgrep "${{job[@]}}" >/dev/null || exit 0
pkill -TERM "${{job[@]}}"
for ((second = 0; second < {wait_s}; second++)); do
  pgrep "${{job[@]}}" >/dev/null || exit 0
  sleep 1
done
echo "the training has not ended within {wait_s} s" >&2
exit {TAKEN}"""
