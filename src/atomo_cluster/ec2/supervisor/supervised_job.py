"""The supervised job, which `jobs`, `logs` and `stop` treat like any other."""

import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.hosts.host_files import write_host_files
from atomo_cluster.ec2.jobs.control import job_label
from atomo_cluster.ec2.jobs.job import (
    TAKEN,
    job_command,
    jobs_in,
    script_of,
    start_command,
    started_job,
)
from atomo_cluster.ec2.jobs.job import Job as Listed
from atomo_cluster.ec2.jobs.quorum import fewest_hosts, fit_options, value_of
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.supervisor.handover import FOLDER
from atomo_cluster.ec2.supervisor.results import out_folder
from atomo_cluster.errors import RemoteError
from atomo_cluster.plain_files import replace_plain

__all__ = ["HOSTS", "SupervisedJob"]

HOSTS: Final = "job_hosts"  # host file of the job, in the folder of the supervisor
LEAVE_S: Final = 90  # EC2 gives two minutes
SHELL_S: Final = 30  # for a command besides its own waits
LIVES: Final = ("queued", "running", "stopping")
KILLED: Final = -9
LEFT: Final = 130
# Its own processes, and ranks that mpirun has put into sessions of their own.
END: Final = "kill -KILL -- -{0}; pkill -KILL -u \"$(id -u)\" -f -- '[-]m atomo (train|rank)'"


@final
class SupervisedJob:
    """One training, started as often as needed; each start is a new job of the master."""

    def __init__(self, cluster: Cluster, words: Sequence[str], home: Path) -> None:
        self._cluster, self._words, self._home = cluster, tuple(words), home
        self._hosts = home / FOLDER / HOSTS
        self._number: int | None = None
        self._adopted = False  # a restarted supervisor adopts the running job at its first look

    @property
    def running(self) -> bool:
        job = self._found()
        return job is not None and job.state in LIVES

    @property
    def code(self) -> int | None:
        """The exit code; None: the job runs, or was not started."""
        job = self._found()
        if job is None or job.state in LIVES:
            return None
        return {"done": 0, "stopped": LEFT, "lost": KILLED}.get(job.state, job.code)

    @property
    def withdrawn(self) -> bool:
        """True if `stop` has ended the job."""
        job = self._found()
        return job is not None and job.state == "stopped"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The identifiers of the hosts with which the job was last started, the master's first."""
        lines = self._hosts.read_text().splitlines() if self._hosts.exists() else []
        return tuple(line.partition("# ")[2] for line in lines)

    @property
    def needed(self) -> int:
        """The fewest hosts on which the job may run."""
        return fewest_hosts(self._words, self._cluster.hosts)

    def start(self, hosts: Sequence[Instance], network: str) -> None:
        """Starts the job from its newest checkpoint; does nothing while another job runs.

        Raises:
            RemoteError: the job cannot be started.
        """
        self._write_hosts(hosts)
        words = fit_options(self._words, len(hosts))
        if not value_of(words, "--hostfile"):
            words = ("--hostfile", str(self._hosts), *words)
        script = script_of(self._cluster, len(hosts), network, words)
        shown = job_label(self._cluster.train_commands, self._words)
        start = start_command(self._cluster, len(hosts), words, shown, queue=False)
        done = self._call(start, script)
        if done.returncode not in (0, TAKEN):
            raise RemoteError(f"starting the job: {done.stderr.strip()}")
        self._number = int(started_job(done.stdout)[0]) if not done.returncode else None
        self._adopted = True

    def stop(self, notified: bool = False) -> None:
        """Makes the job write a checkpoint and end, and kills it after a timeout.

        A job that lost a host may not end by itself.

        Args:
            notified: a spot notice has already stopped the job, and this call only waits: a second
                signal would skip the checkpoint.
        """
        if not self.running:
            return
        folder = self._home / self._cluster.remote_dir / "jobs" / str(self._number)
        if notified:
            wait = ["flock", "-w", str(LEAVE_S), str(folder / "lock"), "true"]
            self._run(wait)
        else:
            self._do("stop", str(self._number), str(LEAVE_S))
        if self.running:
            end = END.format(shlex.quote((folder / "pid").read_text().strip()))
            self._run(["bash", "-c", end], bound_s=SHELL_S)

    def _write_hosts(self, hosts: Sequence[Instance]) -> None:
        """Writes the host file of the job, and those that commands of the settings read.

        The job has a file of its own, since the launcher reads it again at each restart, and the
        setup of new hosts names them in the others before they can train.
        """
        addresses = [host.private_ip or host.id for host in hosts]
        write_host_files(self._home / self._cluster.remote_dir, addresses)
        lines = [f"{address} # {host.id}\n" for address, host in zip(addresses, hosts, strict=True)]
        self._hosts.parent.mkdir(parents=True, exist_ok=True)
        replace_plain(self._hosts, "".join(lines))

    def forget(self) -> None:
        """Forgets the exit code, so that the job can be started again."""
        self._number, self._adopted = None, True

    def _found(self) -> Listed | None:
        """Returns the job as the folder of the jobs has it; None: it was not started.

        Raises:
            RemoteError: the folder does not answer, or has lost the job.
        """
        if self._adopted and self._number is None:
            return None
        jobs = self._listed()
        if not self._adopted:
            living = (job.number for job in jobs if job.state in LIVES)
            self._number, self._adopted = next(living, None), True
        job = next((job for job in jobs if job.number == self._number), None)
        if job is None and self._number is not None:
            raise RemoteError(f"the folder of the jobs has no job {self._number}")
        return job

    def _listed(self) -> list[Listed]:
        with suppress(FileNotFoundError):  # a job that cannot write its results trains no more
            out_folder(self._cluster, self._home).stat()
        done = self._do("list")
        if done.returncode:
            raise RemoteError(f"the folder of the jobs: {done.stderr.strip()}")
        return jobs_in(done.stdout)

    def _do(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self._call(job_command(self._cluster, words[0], *words[1:]))

    def _call(self, command: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return self._run(["bash", "-c", command], stdin)

    def _run(
        self, line: Sequence[str], stdin: str = "", bound_s: float = LEAVE_S + SHELL_S
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program.

        Raises:
            RemoteError: it does not end: the folder of the jobs may not answer.
        """
        try:
            return subprocess.run(line, cwd=self._home, input=stdin, capture_output=True, text=True,
                                  check=False, timeout=bound_s)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RemoteError(f"{line[0]}: no answer within {bound_s:g} s") from error
