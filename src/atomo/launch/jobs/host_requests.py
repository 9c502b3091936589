"""Requests for several hosts that mpirun may ignore: in environment variables and `--mpi-args`.

Kubernetes' MPI operator names its host file in a variable of Open MPI 4. Open MPI 5 ignores the
variable and starts all ranks on one host, with exit code 0.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from atomo.config.settings import Settings
from atomo.core.safe_read import read_text
from atomo.errors import ConfigError
from atomo.training.job.requested_hosts import RequestedHosts

__all__ = ["check_environment", "hosts_of_launcher"]

# Variables with the path of a host file: of Open MPI 4, of Open MPI 5, of MPICH and of Intel MPI.
VARIABLES: Final = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
FILE_OPTIONS: Final = ("--hostfile", "-hostfile", "--machinefile", "-machinefile")
HOST_OPTIONS: Final = ("--host", "-host", "-H")
COUNT: Final = re.compile(r":\d+$")


def check_environment(
    settings: Settings, mpi_args: Sequence[str], environment: Mapping[str, str] = os.environ
) -> None:
    """Refuses a job for this host alone where the environment names several hosts.

    Args:
        settings: the settings of the job.
        mpi_args: the words of `--mpi-args`.
        environment: the environment variables of the launcher.

    Raises:
        ConfigError: the job is for this host alone, and a variable names a file of several hosts.
    """
    if settings.hostfile or settings.slurm or named_in(mpi_args):
        return
    if found := host_file_of(environment):
        variable, path, hosts = found
        raise ConfigError(
            f"{variable} names {len(hosts)} hosts, and without --hostfile all ranks would run on "
            f"this one: give --hostfile {path}, or a file with the line `localhost` to train here"
        )


def hosts_of_launcher(
    mpi_args: Sequence[str], environment: Mapping[str, str] = os.environ
) -> RequestedHosts | None:
    """Returns the hosts that mpirun was asked for, by its arguments or the environment; None: at
    most one.
    """
    if hosts := named_in(mpi_args):
        fix = "name different hosts, or give the file as --hostfile of `atomo train`"
        return RequestedHosts("--mpi-args", fix) if len(hosts) > 1 else None
    found = host_file_of(environment)
    if found is None:
        return None
    variable, path, _ = found
    fix = f"start the ranks with `mpirun --hostfile {path} --map-by node`"
    if variable.startswith("OMPI"):
        fix += ", since Open MPI 5 ignores this variable"
    return RequestedHosts(variable, fix)


def host_file_of(environment: Mapping[str, str]) -> tuple[str, str, set[str]] | None:
    """Returns the variable, the path and the hosts of a file of several hosts; None: there is no
    such file here.
    """
    for variable in VARIABLES:
        path = environment.get(variable)
        hosts = read_names(path) if path else set[str]()
        if path and len(hosts) > 1:
            return variable, path, hosts
    return None


def named_in(words: Sequence[str]) -> set[str]:
    """Returns the hosts that arguments of mpirun name."""
    hosts: set[str] = set()
    for option, value in pairwise(words):
        if option in FILE_OPTIONS:
            hosts |= read_names(value)
        elif option in HOST_OPTIONS:
            hosts |= {COUNT.sub("", name) for name in value.split(",")}
    return hosts


def read_names(path: str) -> set[str]:
    """Returns the hosts of a file of any MPI, a host a line; none if the file cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        lines = (line.partition("#")[0].split() for line in read_text(Path(path)).splitlines())
        return {COUNT.sub("", words[0]) for words in lines if words}
    return set()
