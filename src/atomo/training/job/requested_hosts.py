"""The hosts that a job asks for, to be compared with the hosts that its ranks are on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from atomo.errors import ConfigError

__all__ = ["RequestedHosts"]


@final
@dataclass(frozen=True)
class RequestedHosts:
    """A request for several hosts, and its origin."""

    source: str
    """The option or the variable that asks, for messages."""
    fix: str
    """The correction of a job that does not get these hosts, for messages."""
    ranks: tuple[int, ...] = ()
    """The number of ranks of each host, in any order; empty: any numbers on at least two hosts."""

    def check(self, hosts: Sequence[str]) -> None:
        """Checks the placement of a job.

        Args:
            hosts: the host of each rank.

        Raises:
            ConfigError: the ranks are on other numbers of hosts.
        """
        counts = Counter(hosts)
        if sorted(counts.values()) == sorted(self.ranks) or (not self.ranks and len(counts) > 1):
            return
        found = ", ".join(f"{count} on {name}" for name, count in counts.items())
        asked = (
            f"hosts with {', '.join(map(str, self.ranks))} ranks" if self.ranks else "several hosts"
        )
        raise ConfigError(f"{self.source} asks for {asked}, and the ranks are {found}: {self.fix}")
