"""The ledger of hosts and their costs on this machine: EC2 forgets a host an hour after its end."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from atomo_cluster.ec2.invocation.ledger_file import LedgerEntry, file_of, read_file, write_file
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.place import Place

__all__ = [
    "LedgerEntry",
    "clear_entries",
    "drop_entries",
    "file_of",
    "life_key",
    "read_entries",
    "record_end",
    "record_entries",
    "record_fuses",
]


def life_key(id: str, launched: str) -> str:
    """Returns the key of a host's life: EC2 counts the launch time from the last start."""
    return f"{id} {launched}"


def read_entries(
    cluster: Cluster, owner: str, place: Place | None = None
) -> dict[str, LedgerEntry]:
    """Returns the entries of an owner by `life_key`; with a place, only those in it.

    They are of the present cluster or of the last one.

    Raises:
        ConfigError: the file is damaged.
    """
    return {
        life_key(entry.id, entry.launched): entry
        for entry in read_file(cluster)
        if entry.owner == owner and (place is None or place.covers(entry.place))
    }


def record_entries(cluster: Cluster, owner: str, entries: Iterable[LedgerEntry]) -> None:
    """Adds entries or updates them. A known end, price and place stay.

    If a host starts again, its earlier life ends at that start at the latest.

    Raises:
        ConfigError: the file is damaged or cannot be written.
    """
    recorded = read_entries(cluster, owner)
    others = [entry for entry in read_file(cluster) if entry.owner != owner]
    for entry in entries:
        key = life_key(entry.id, entry.launched)
        old = recorded.get(key)
        price = entry.usd_per_hour if old is None or entry.usd_per_hour else old.usd_per_hour
        if old is None or not old.ended:
            recorded[key] = placed(replace(entry, usd_per_hour=price), old)
        elif old.usd_per_hour is None:  # an unknown price would make the sum unknown for ever
            recorded[key] = replace(old, usd_per_hour=price)
    write_file(cluster, [*others, *bounded(list(recorded.values()))])


def placed(entry: LedgerEntry, old: LedgerEntry | None) -> LedgerEntry:
    """Returns an entry with the place of an older one where it knows none itself."""
    if old is None or (entry.account and entry.region):
        return entry
    place = old.place
    return replace(entry, account=entry.account or place.account,
                   region=entry.region or place.region, endpoint=entry.endpoint or place.endpoint,
                   profile=entry.profile or place.profile)  # fmt: skip


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


def clear_entries(cluster: Cluster, owner: str, place: Place) -> None:
    """Clears the ledger for a new cluster in a place.

    Hosts in other places stay, with those that have ended beside them, as long as one may live.
    """
    entries = read_file(cluster)
    alive = {(entry.owner, entry.place) for entry in entries if not entry.ended}
    kept = [
        entry
        for entry in entries
        if not (entry.owner == owner and place.covers(entry.place))
        and (entry.owner, entry.place) in alive
    ]
    if len(kept) < len(entries):
        write_file(cluster, kept)


def record_fuses(cluster: Cluster, owner: str, fuses: Mapping[str, datetime]) -> None:
    """Records later fuses, by host."""
    moved = [
        replace(entry, until=fuses[entry.id].isoformat())
        for entry in read_entries(cluster, owner).values()
        if entry.id in fuses
    ]
    record_entries(cluster, owner, moved)


def record_end(cluster: Cluster, ids: Iterable[str], now: datetime) -> None:
    """Records that these hosts have ended, at the latest now."""
    entries, gone = read_file(cluster), set(ids)
    if any(entry.id in gone and not entry.ended for entry in entries):
        write_file(cluster, [end_of(entry, now) if entry.id in gone else entry
                             for entry in entries])  # fmt: skip


def end_of(entry: LedgerEntry, now: datetime) -> LedgerEntry:
    """Returns the entry of a host that has ended, at the latest now."""
    if entry.ended:
        return entry
    return replace(entry, ended=True, until=min(entry.until, now.isoformat(), key=time_of))


def time_of(text: str) -> datetime:
    """Parses a time."""
    return datetime.fromisoformat(text)


def drop_entries(cluster: Cluster, ids: Iterable[str]) -> None:
    """Takes hosts out of the ledger, whether they have ended or not."""
    dropped = set(ids)
    write_file(cluster, [entry for entry in read_file(cluster) if entry.id not in dropped])
