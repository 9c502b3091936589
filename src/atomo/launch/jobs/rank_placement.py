"""The hosts of a job, and which of them each rank is on, some hosts being away."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from atomo.config.comm_rules import has_master
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.launch.jobs.hosts import Host, assign_processes, read_hosts, remaining_hosts
from atomo.launch.jobs.slurm import allocated_hosts

__all__ = ["fit_to_slots", "job_hosts", "list_hosts", "rank_hosts", "ranks_per_host"]

ALLOCATION: Final = "the allocation of SLURM (--ntasks, --ntasks-per-node)"


def list_hosts(settings: Settings) -> list[Host]:
    """Returns the hosts of the allocation or of the host file, the master's first; without either
    none.

    Raises:
        ConfigError: there is no allocation, or the file cannot be read.
    """
    if settings.slurm:
        return allocated_hosts()
    return read_hosts(Path(settings.hostfile)) if settings.hostfile else []


def job_hosts(settings: Settings) -> list[str]:
    """Returns the names of the hosts of a job; where it is on this one alone none.

    Raises:
        ConfigError: they cannot be found out.
    """
    return list(dict.fromkeys(host.name for host in list_hosts(settings)))


def ranks_per_host(settings: Settings, away: Collection[str] = ()) -> list[tuple[str, int]]:
    """Counts the ranks of each host; empty if the job runs on this host alone.

    Raises:
        ConfigError: no host is left, or those that are have too few slots.
    """
    hosts = list_hosts(settings)
    if not hosts:
        return []
    source = ALLOCATION if settings.slurm else "the host file"
    return assign_processes(remaining_hosts(hosts, away), settings.processes, source)


def rank_hosts(settings: Settings, away: Collection[str]) -> tuple[str, ...]:
    """Returns the host of each rank, as mpirun places them; where the job is on this one alone
    none.

    Raises:
        ConfigError: no host is left, or those that are have too few slots.
    """
    return tuple(name for name, count in ranks_per_host(settings, away) for _ in range(count))


def fit_to_slots(settings: Settings, away: Collection[str]) -> Settings:
    """Returns the settings with no more ranks than there are slots on the hosts that are not away,
    spares being the first that there are fewer of.

    Without a master all ranks are needed, but for the spares.

    Raises:
        ConfigError: so few workers are left that the run must not go on.
    """
    hosts = list_hosts(settings) if away else []
    if not hosts:
        return settings
    slots = [host.slots for host in remaining_hosts(hosts, away)]
    if None in slots:
        return settings
    room = sum(filter(None, slots))
    if not has_master(settings.comm_type):
        return replace(settings, spares=min(settings.spares, max(0, room - settings.n)))
    n = min(settings.n, room)
    if n - 1 < settings.least_workers:
        raise ConfigError(
            f"the hosts that are left have slots for {n} processes, a master and {n - 1} workers, "
            f"and --min-workers is {settings.least_workers}"
        )
    return replace(
        settings,
        n=n,
        spares=min(settings.spares, room - n),
        num_aggregate=min(settings.num_aggregate, n - 1),
        min_workers=settings.least_workers,
    )
