"""Training on the cluster: what a job runs, how it is asked for and told, and ending Python."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.config import Cluster

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
SCRIPT: Final = Path(__file__).parent / "host" / "job.sh"
# Exit codes of job.sh.
TAKEN: Final = 75
ABSENT: Final = 66
LOST: Final = 70


@dataclass(frozen=True)
class Job:
    """A job on the master. Times are seconds since 1970; None: not yet, or nobody knows."""

    number: int
    state: str  # queued, running, stopping, done, failed, stopped, or lost: it ended without a word
    code: int | None
    made: int | None
    started: int | None
    ended: int | None
    shown: str  # what it runs


def jobs_in(text: str) -> list[Job]:
    r"""The jobs that `job.sh list` tells of.

    >>> jobs_in("1\tfailed\t3\t10\t11\t19\t--epochs 2")[0].ended
    19
    """
    return [job_in(line) for line in text.splitlines()]


def job_in(line: str) -> Job:
    """The job of a line."""
    number, state, *rest, shown = line.split("\t", 6)
    code, made, started, ended = [int(word) if word else None for word in rest]
    return Job(int(number), state, code, made, started, ended, shown)


def job_command(cluster: Cluster, verb: str, *words: str) -> str:
    """The shell command of a verb of job.sh, for the master, whatever checkout lies there."""
    line = shlex.join(["bash", "-c", SCRIPT.read_text(), "job", verb, *words])
    return f"cd {cluster.remote_dir} && {line}"


def script_of(cluster: Cluster, hosts: int, network: str, words: Sequence[str]) -> str:
    """What a job runs, in the checkout of the master.

    `network` is the CIDR that MPI keeps to: images bring bridges, such as Docker's, that all hosts
    have with the same address, and MPI would hang on them. What `words` says wins.
    """
    given = {word.partition("=")[0] for word in words}
    options = [] if "--n" in given else ["--n", str(hosts)]
    options += [] if "--hostfile" in given else ["--hostfile", "hosts_address"]
    options += [] if "--train-dir" in given else ["--train-dir", f"{cluster.out_dir}/train"]
    if network and "--mpi-args" not in given:
        keep = f"--mca btl_tcp_if_include {network} --prtemca prte_if_include {network}"
        options += [f"--mpi-args={keep}"]
    line = shlex.join(["bash", "run_pytorch.sh", *options, *words])
    commands = [*cluster.master_pre_commands, *(cluster.train_commands or [line])]
    return "\n".join(["set -e", *commands]) + "\n"


def leave_command(wait_s: int) -> str:
    """The shell command that has a training on this host write a checkpoint and end.

    Only its launcher is told, which tells the ranks: a rank that is killed takes the run with it.
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
