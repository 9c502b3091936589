"""Commands on jobs of the master: start, list, follow, stop."""

import shlex
from collections.abc import Sequence

from atomo_cluster.ec2.hosts.ssh import COMMAND_S, UNREACHED, Host, Ssh
from atomo_cluster.ec2.hosts.streaming import relay_output
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.job import (
    ABSENT,
    LOST,
    TAKEN,
    Job,
    job_command,
    jobs_in,
    script_of,
    start_command,
    started_job,
)
from atomo_cluster.ec2.targets.selection import host_keys, inner_network, ssh_of
from atomo_cluster.errors import ConfigError, NotReady, RemoteError

__all__ = [
    "check_free",
    "check_idle",
    "follow_job",
    "job_label",
    "list_jobs",
    "print_tail",
    "start_job",
    "stop_job",
]


def at_master(run: Run, master: Host) -> Ssh:
    """Pins the host key of the master, and returns the connection to it."""
    ssh = ssh_of(run)
    host_keys(run, ssh).pin(master)
    return ssh


def start_job(
    run: Run, master: Host, hosts: int, words: Sequence[str], *, queue: bool
) -> tuple[str, str, str]:
    """Starts a job, which outlives the connection; returns its number, folder and script.

    Raises:
        NotReady: another job runs, and `queue` is false.
    """
    ssh = at_master(run, master)
    shown = job_label(run.cluster.train_commands, words)
    script = script_of(run.cluster, hosts, inner_network(run), words)
    command = start_command(run.cluster, hosts, words, shown, queue=queue)
    answer = ssh.run(master, command, script.encode())
    if answer.code == TAKEN:
        raise NotReady(busy(run, master))
    return *started_job(answer.checked("starting a job")), script


def check_free(run: Run, master: Host) -> None:
    """Raises NotReady if a job runs."""
    if running_jobs(run, master):
        raise NotReady(busy(run, master))


def running_jobs(run: Run, master: Host) -> list[Job]:
    """Returns the running job, if any."""
    return [job for job in list_jobs(run, master) if job.state in ("running", "stopping")]


def check_idle(run: Run, master: Host) -> None:
    """Raises NotReady if a job runs or waits."""
    for job in list_jobs(run, master):
        if job.state in ("queued", "running", "stopping"):
            raise NotReady(
                f"job {job.number} ({job.shown}) is {job.state}; `stop {job.number}` ends it with "
                "a checkpoint, and the same `train` continues from it afterwards"
            )


def busy(run: Run, master: Host) -> str:
    """Formats the error for a busy master, with its remedies."""
    running = running_jobs(run, master)
    work = f"job {running[0].number} ({running[0].shown})" if running else "a training"
    return (
        f"{work} runs already on {master.name}, and this one was not started: `--queue` has it "
        "wait, `attach` follows the other, `stop JOB` ends it with a checkpoint"
    )


def list_jobs(run: Run, master: Host) -> list[Job]:
    """Lists all jobs of the master, oldest first."""
    answer = at_master(run, master).run(master, job_command(run.cluster, "list"))
    return jobs_in(answer.checked("listing jobs"))


def print_tail(run: Run, master: Host, job: str, lines: str) -> None:
    """Prints the last lines of a job."""
    run_on_master(run, master, job_command(run.cluster, "log", job, lines), job)


def follow_job(run: Run, master: Host, job: str, lines: str) -> int:
    """Prints the output of a job until it ends; returns its exit code.

    Raises:
        RemoteError: the connection broke and the job continues, or the job ended without exit code.
    """
    code = run_on_master(run, master, job_command(run.cluster, "follow", job, lines), job)
    if code == LOST:
        raise RemoteError(f"job {job} ended without a word: killed by force, or with its host")
    return code


def run_on_master(run: Run, master: Host, command: str, job: str) -> int:
    """Runs a command on the master with our output streams; returns its exit code."""
    line = at_master(run, master).words(master, command)
    code = relay_output(line, as_json=run.as_json)
    if code == UNREACHED:
        raise RemoteError(
            f"{master.name}: the connection broke; the job keeps running, `attach {job}` "
            "follows it again"
        )
    if code == ABSENT:
        raise ConfigError(f"no job {job} on {master.name}; `jobs` lists them")
    return code


def stop_job(run: Run, master: Host, job: str, wait_s: int) -> str:
    """Makes a job write a checkpoint and end, waits for it, and returns a message."""
    command = job_command(run.cluster, "stop", job, str(wait_s))
    answer = at_master(run, master).run(master, command, timeout_s=wait_s + COMMAND_S)
    if answer.code == ABSENT:
        raise ConfigError(f"{answer.err.strip()}")
    return answer.checked(f"stopping job {job}").strip()


def job_label(commands: Sequence[str], words: Sequence[str]) -> str:
    """Returns a one-line description of a job."""
    return " ".join("; ".join(commands).split()) or shlex.join(words) or "train"
