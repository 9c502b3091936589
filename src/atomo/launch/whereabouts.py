"""Which host of the host file each rank of a job is on, some hosts being away."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from atomo.config import Settings
from atomo.errors import ConfigError
from atomo.launch.hosts import assign, left, read_hosts
from atomo.roles import has_master

__all__ = ["fitted", "hosts_of", "ranks_at"]


def hosts_of(settings: Settings) -> list[str]:
    """The hosts of the host file, without one none.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not settings.hostfile:
        return []
    return list(dict.fromkeys(host.name for host in read_hosts(Path(settings.hostfile))))


def ranks_at(settings: Settings, away: Collection[str]) -> tuple[str, ...]:
    """The host of each rank, as mpirun places them; without a host file none.

    Raises:
        ConfigError: no host is left, or those that are have too few slots.
    """
    if not settings.hostfile:
        return ()
    counts = assign(left(read_hosts(Path(settings.hostfile)), away), settings.processes)
    return tuple(name for name, count in counts for _ in range(count))


def fitted(settings: Settings, away: Collection[str]) -> Settings:
    """The settings with no more ranks than there are slots on the hosts that are not away, spares
    being the first that there are fewer of.

    Without a master all ranks are needed.

    Raises:
        ConfigError: so few workers are left that the run must not go on.
    """
    if not settings.hostfile or not away:
        return settings
    slots = [host.slots for host in left(read_hosts(Path(settings.hostfile)), away)]
    if None in slots or not has_master(settings.comm_type):
        return settings
    room = sum(filter(None, slots))
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
