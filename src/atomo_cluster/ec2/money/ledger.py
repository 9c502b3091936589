"""The ledger of hosts and their costs on this machine: EC2 forgets a host an hour after its end."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from atomo_cluster.ec2.invocation.recorded_owners import LEDGER
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import ConfigError
from atomo_cluster.plain_files import replace_plain

__all__ = [
    "LedgerEntry",
    "clear_entries",
    "file_of",
    "life_key",
    "read_entries",
    "record_end",
    "record_entries",
    "record_fuses",
]


@dataclass(frozen=True)
class LedgerEntry:
    """One life of a host: a stopped host that starts again begins a new life."""

    id: str
    owner: str
    type: str
    launched: str  # ISO 8601, as all times here
    until: str  # its end; while that is not known, its fuse
    ended: bool  # whether the end is known
    usd_per_hour: float | None  # with disk and address, at the last look; None: AWS did not say

    def hours(self, now: datetime) -> float:
        """Returns the hours of this life until now."""
        end = min(now, datetime.fromisoformat(self.until))
        return max(0.0, (end - datetime.fromisoformat(self.launched)).total_seconds() / 3600)

    def usd(self, now: datetime) -> float | None:
        """Returns the cost of this life until now, in USD; None: unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.hours(now)


def life_key(id: str, launched: str) -> str:
    """Returns the key of a host's life: EC2 counts the launch time from the last start."""
    return f"{id} {launched}"


def file_of(cluster: Cluster) -> Path:
    """Returns the ledger file of a cluster."""
    return cluster.state / LEDGER


def read_entries(cluster: Cluster, owner: str) -> dict[str, LedgerEntry]:
    """Returns the entries, by `life_key`, of the present cluster or of the last one.

    Raises:
        ConfigError: the file is damaged.
    """
    path = file_of(cluster)
    try:
        entries = [LedgerEntry(**record) for record in json.loads(path.read_text())]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}; delete it; the past costs are then lost") from error
    owned = [entry for entry in entries if entry.owner == owner]
    return {life_key(entry.id, entry.launched): entry for entry in owned}


def record_entries(cluster: Cluster, owner: str, entries: Iterable[LedgerEntry]) -> None:
    """Adds entries or updates them. A known end and price stay.

    If a host starts again, its earlier life ends at that start at the latest.

    Raises:
        ConfigError: the file is damaged or cannot be written.
    """
    recorded = read_entries(cluster, owner)
    for entry in entries:
        key = life_key(entry.id, entry.launched)
        old = recorded.get(key)
        price = entry.usd_per_hour if old is None or entry.usd_per_hour else old.usd_per_hour
        if old is None or not old.ended:
            recorded[key] = replace(entry, usd_per_hour=price)
        elif old.usd_per_hour is None:  # an unknown price would make the sum unknown for ever
            recorded[key] = replace(old, usd_per_hour=price)
    write(file_of(cluster), bounded(list(recorded.values())))


def bounded(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """Ends each life with an unknown end before the next life of the same host."""
    starts: dict[str, list[datetime]] = {}
    for entry in entries:
        starts.setdefault(entry.id, []).append(datetime.fromisoformat(entry.launched))
    return [before(entry, starts[entry.id]) for entry in entries]


def before(entry: LedgerEntry, starts: list[datetime]) -> LedgerEntry:
    """Limits an entry to the next start of its host."""
    launched, until = datetime.fromisoformat(entry.launched), datetime.fromisoformat(entry.until)
    following = min((start for start in starts if start > launched), default=None)
    if following is None or entry.ended or until <= following:
        return entry
    return replace(entry, until=following.isoformat())


def clear_entries(cluster: Cluster, owner: str) -> None:
    """Clears the ledger for a new cluster."""
    if read_entries(cluster, owner):
        write(file_of(cluster), ())


def record_fuses(cluster: Cluster, owner: str, fuses: Mapping[str, datetime]) -> None:
    """Records later fuses, by host."""
    moved = [
        replace(entry, until=fuses[entry.id].isoformat())
        for entry in read_entries(cluster, owner).values()
        if entry.id in fuses
    ]
    record_entries(cluster, owner, moved)


def record_end(cluster: Cluster, owner: str, now: datetime) -> None:
    """Records that all hosts have ended, at the latest now."""
    recorded = read_entries(cluster, owner)
    if not recorded:
        return
    write(file_of(cluster), [
        entry if entry.ended or datetime.fromisoformat(entry.until) <= now
        else replace(entry, until=now.isoformat(), ended=True)
        for entry in recorded.values()
    ])  # fmt: skip


def write(path: Path, entries: Iterable[LedgerEntry]) -> None:
    """Replaces the file atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_plain(path, json.dumps([asdict(entry) for entry in entries], indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error}; the costs of hosts cannot be recorded") from error
