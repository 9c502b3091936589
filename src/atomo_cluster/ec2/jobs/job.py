"""Training jobs: their scripts, the commands that control them, and the end of Python."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.jobs.quorum import count_masters, fewest_hosts, value_of, whole
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["ABSENT", "BUSY", "KILL", "LOST", "TAKEN", "Job", "job_command", "jobs_in",
           "leave_command", "script_of", "start_command", "started_job"]  # fmt: skip

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
COUNT: Final = "$ATOMO_JOB_N"  # of the hosts that answer
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
    folder: str  # of its results, as seen from the checkout; empty: its commands know
    shown: str  # its command, shortened


def jobs_in(text: str) -> list[Job]:
    r"""Parses the output of `job.sh list`.

    >>> jobs_in("1\tfailed\t3\t10\t11\t19\truns/job-1\t--epochs 2")[0].folder
    'runs/job-1'
    """
    return [job_in(line) for line in text.splitlines()]


def job_in(line: str) -> Job:
    """Parses a line of `job.sh list`."""
    number, state, *fields, folder, shown = line.split("\t", 7)
    code, made, started, ended = [int(word) if word else None for word in fields]
    return Job(int(number), state, code, made, started, ended, folder, shown)


def job_command(cluster: Cluster, verb: str, *words: str) -> str:
    """Builds the shell command of a job.sh verb; job.sh travels in it, so any checkout will do."""
    line = shlex.join(["bash", "-c", SCRIPT.read_text(), "job", verb, *words])
    return f"cd {cluster.remote_dir} && {line}"


def start_command(
    cluster: Cluster, hosts: int, words: Sequence[str], shown: str, *, queue: bool
) -> str:
    """Builds the shell command that starts the job of `script_of` as `shown`."""
    folder = value_of(words, "--train-dir")
    least = "" if value_of(words, "--hostfile") else str(fewest_hosts(words, hosts))
    place = f"={folder}" if folder else cluster.out_dir
    if cluster.train_commands:  # which know folders and hosts of their own
        place = least = ""
    return job_command(cluster, "start", "yes" if queue else "no", shown, place, str(hosts), least)


def started_job(output: str) -> tuple[str, str]:
    r"""Parses the output of a start: the number of the job, and the folder of its results.

    >>> started_job("3\truns/job-3\n")
    ('3', 'runs/job-3')
    """
    number, _, folder = output.strip("\n").partition("\t")
    return number, folder


def script_of(cluster: Cluster, hosts: int, network: str, words: Sequence[str]) -> str:
    """Builds the script of a job; it runs in the checkout of the master.

    `network` is the CIDR that MPI uses: images have bridges, such as Docker's, with the same
    address on all hosts, and MPI would hang on them. Options in `words` take precedence. `job.sh`
    says which hosts answer, and which folder is the job's.
    """
    words = [*default_options(cluster, words), *words]
    options = [] if value_of(words, "--n") else ["--n", COUNT]
    options += [] if value_of(words, "--hostfile") else ["--hostfile", '"$ATOMO_JOB_HOSTS"']
    options += [] if value_of(words, "--train-dir") else ["--train-dir", '"$ATOMO_TRAIN_DIR"']
    if network and not value_of(words, "--mpi-args"):
        keep = f"--mca btl_tcp_if_include {network} --prtemca prte_if_include {network}"
        options.append(shlex.quote(f"--mpi-args={keep}"))
    line = ["bash", "run_pytorch.sh", *options, shlex.join(words), *fewer_gradients(words, hosts)]
    commands = [*cluster.master_pre_commands, *(cluster.train_commands or [" ".join(line)])]
    return "\n".join(["set -e", *commands]) + "\n"


def default_options(cluster: Cluster, words: Sequence[str]) -> list[str]:
    """Returns the options of jobs that the settings have, unless `words` have them."""
    count = cluster.num_replicas_to_aggregate
    given = value_of(words, "--num-aggregate") or value_of(words, "--num-replicas-to-aggregate")
    return [] if count is None or given else ["--num-aggregate", str(count)]


def fewer_gradients(words: Sequence[str], hosts: int) -> list[str]:
    """Returns the option that keeps `--num-aggregate` within the workers of hosts that answer."""
    masters, wanted = count_masters(words), whole(words, "--num-aggregate")
    if value_of(words, "--n") or not 0 < wanted <= hosts - masters:
        return []
    return [
        f'"--num-aggregate=$(({COUNT} - {masters} < {wanted} ? {COUNT} - {masters} : {wanted}))"'
    ]


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
