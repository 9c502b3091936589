"""The command lines of a job: mpirun for the ranks, and the evaluator."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from atomo.config.comm_rules import survives_worker_loss
from atomo.config.settings import Settings, wants_gpu
from atomo.core.distribution import install_command
from atomo.errors import ConfigError, MissingPackage
from atomo.launch.jobs.host_requests import check_environment
from atomo.launch.jobs.hosts import HERE
from atomo.launch.jobs.rank_placement import ranks_per_host
from atomo.launch.jobs.ssh import ssh_command
from atomo.workloads.models import is_own

__all__ = ["evaluator_command", "mpirun_command", "split_arguments"]

VERSION_S = 60.0  # time limit for `mpirun --version`, also on a busy host
FAULT_TOLERANT: Final = 5  # the first Open MPI whose jobs outlive a rank
# In an allocation of these schedulers mpirun uses the allocated hosts, even if none are named.
ALLOCATIONS: Final = {"SLURM_JOB_ID": "slurm", "PBS_JOBID": "pbs"}
RANK_BYTES = 150_000_000  # minimum private memory of a rank
KEEPALIVE: Final = "oob_tcp_keepalive_"
# mpirun notices a silent host after 1 s and three probes a second apart, and not after 480 s.
KEEPALIVES: Final = (("time", "1"), ("intvl", "1"), ("probes", "3"))
SSH_ARGUMENTS: Final = "plm_ssh_args"
# Daemons on a lost host hold their resources until SLURM notices the loss: minutes.
SRUN_ARGUMENTS: Final = "plm_slurm_args"
# The same for the ssh that starts the daemons.
IMPATIENT: Final = "-o ConnectTimeout=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=4"


def mpirun_command(
    settings: Settings, rank_arguments: Sequence[str], away: Collection[str] = ()
) -> list[str]:
    """Returns the command line that starts every rank of a job.

    Args:
        settings: the settings of the job.
        rank_arguments: the arguments of each rank.
        away: hosts of the host file to leave out.

    Raises:
        ConfigError: there is no mpirun, or the host file cannot be used.
    """
    mpirun, *python_line = python_command(settings, away)
    words = ["-m", "atomo", "rank", "--events", "json", *spread_option(settings, away)]
    words += rank_arguments
    return [mpirun, *python_line[:2], *fault_tolerance_options(settings), *python_line[2:], *words]


def python_command(settings: Settings, away: Collection[str] = ()) -> list[str]:
    """Returns the beginning of a command line that starts Python on every rank, without Python's
    arguments.

    Raises:
        ConfigError: there is no mpirun, or the host file cannot be used.
    """
    line = [find_mpirun(), "-n", str(settings.processes), "--bind-to", "none"]
    if os.geteuid() == 0:  # in containers; mpirun refuses to run as root without this option
        line.append("--allow-run-as-root")
    line += placement_options(settings, away) + split_arguments(settings.mpi_args)
    return [*line, sys.executable]


def fault_tolerance_options(settings: Settings) -> list[str]:
    """Returns the options with which a job survives the loss of a worker and notices the loss of a
    host, if this mpirun has them.

    Without these options mpirun ends all ranks when a rank dies, which is right for a communicator
    that cannot continue without a rank.
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
    """Returns the major version of Open MPI; 0: this mpirun is of another MPI."""
    command = [find_mpirun(), "--version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=VERSION_S
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"`{' '.join(command)}` has not answered within {VERSION_S:g} s: no job can be started "
            "with it; put another mpirun on the PATH, or check the file system"
        ) from error
    version = re.search(r"\(Open MPI\) (\d+)\.", answer.stdout)
    return int(version[1]) if version else 0


def split_arguments(mpi_args: str) -> list[str]:
    """Splits `--mpi-args` into words, as a shell does."""
    try:
        return shlex.split(mpi_args)
    except ValueError as error:
        raise ConfigError(f"--mpi-args {mpi_args!r}: {error}") from error


def find_mpirun() -> str:
    """Returns the path of this environment's mpirun, otherwise of the system's.

    Raises:
        MissingPackage: there is none, or no mpi4py for the ranks of this host.
    """
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise MissingPackage(f"there is no mpirun here; `{install_command('mpi')}` brings one")
    if find_spec("mpi4py") is None:  # before each rank says so
        raise MissingPackage(
            f"mpirun starts ranks that need mpi4py; `{install_command('mpi')}` brings it"
        )
    return path


def spread_option(settings: Settings, away: Collection[str]) -> list[str]:
    """Returns the option with which ranks check that they are on the hosts that were asked for;
    none for a job on this host alone.
    """
    counts: dict[str, int] = {}
    for name, count in ranks_per_host(settings, away):
        host = "localhost" if is_own_name(name) else name
        counts[host] = counts.get(host, 0) + count
    several = len(counts) > 1
    return [f"--ranks-per-host={','.join(map(str, counts.values()))}"] if several else []


def is_own_name(name: str) -> bool:
    """Returns True for a name of this host that needs no look-up."""
    return name in HERE or name == socket.gethostname()


def placement_options(settings: Settings, away: Collection[str]) -> list[str]:
    """Returns the options that map ranks to hosts. More ranks than cores are allowed: the master
    mostly waits.
    """
    check_environment(settings, split_arguments(settings.mpi_args))
    counts = ranks_per_host(settings, away)
    if all(is_own_name(name) for name, _ in counts):
        check_host_memory(settings.processes)
        return [*single_host_options(settings.mpi_args), "--map-by", "node:OVERSUBSCRIBE"]
    # Mapping by slot keeps the counts: by node, mpirun 5.0 refuses uneven counts, and ignores them
    # with OVERSUBSCRIBE.
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
    """Returns the command line of a run's evaluator."""
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
        *(["--keep-best=yes"] if settings.keep_checkpoints else []),
        # The workers' hosts may have GPUs, and this host none.
        *(["--enable-gpu=auto"] if wants_gpu(settings.enable_gpu) else []),
        *([f"--network={settings.network}"] if is_own(settings.network) else []),
    ]
