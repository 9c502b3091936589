"""The hosts that the ledger has and a command does not find by their tags.

Some live in other regions, some have lost their tags, and some cannot be seen from here: in another
account, at another endpoint, or in a region that does not answer. These may run and cost.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from atomo_cluster.ec2.aws.inventory import LIVE, Instance, instances, instances_by_id, volumes
from atomo_cluster.ec2.invocation.ledger_file import LedgerEntry
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.ledger import record_end
from atomo_cluster.ec2.settings.place import Place
from atomo_cluster.errors import CloudError, ConfigError

__all__ = [
    "HostGroup",
    "Survey",
    "cluster_instances",
    "lost_hosts",
    "survey",
    "tell_cluster_place",
    "tell_place",
]

SETTLED: Final = timedelta(hours=1)  # a host that is younger may not be listed yet


@dataclass(frozen=True)
class HostGroup:
    """Hosts of the ledger in one place."""

    place: Place
    lives: tuple[LedgerEntry, ...]
    text: str  # which hosts, where, and which command looks there

    @property
    def record(self) -> dict[str, object]:
        """The group as a record for `--json`."""
        return {"hosts": [life.id for life in self.lives], "account": self.place.account,
                "region": self.place.region, "endpoint": self.place.endpoint,
                "text": self.text}  # fmt: skip


@dataclass(frozen=True)
class Survey:
    """The hosts of the ledger in other places than a command acts on."""

    elsewhere: tuple[HostGroup, ...]  # they live
    unseen: tuple[HostGroup, ...]  # they may live

    @property
    def texts(self) -> list[str]:
        """A line per place."""
        return [group.text for group in (*self.elsewhere, *self.unseen)]


def survey(run: Run, looked: Sequence[Run]) -> Survey:
    """Looks for the hosts of the ledger in other places than those of `looked`.

    Args:
        run: the command.
        looked: the regions on which the command acts.
    """
    here = looked[0].place
    regions = {"", *(one.aws.region for one in looked)}
    elsewhere: list[HostGroup] = []
    unseen: list[HostGroup] = []
    for place, lives in by_place(run.lives).items():
        if not here.sees(place):
            unseen.append(HostGroup(place, lives, unseen_text(run, here, place, lives)))
        elif place.region not in regions:
            try:
                elsewhere += alive_elsewhere(run, place, lives)
            except CloudError as error:
                text = f"{not_seen(lives, place)}, where AWS does not answer: {error}"
                unseen.append(HostGroup(place, lives, text))
    return Survey(tuple(elsewhere), tuple(unseen))


def tell_cluster_place(run: Run) -> None:
    """Says which place a command speaks of; hosts of --hostfile have none."""
    if not getattr(run.options, "hostfile", None):
        tell_place(run, run.looked_at())


def tell_place(run: Run, looked: Sequence[Run]) -> Survey:
    """Says on stderr which place a command speaks of, and which hosts are in others."""
    here = looked[0].place
    regions = ", ".join(one.aws.region for one in looked)
    run.warn(f"place: {replace(here, region=regions).text}")
    others = survey(run, looked)
    for text in others.texts:
        run.warn(text)
    return others


def by_place(lives: Iterable[LedgerEntry]) -> dict[Place, tuple[LedgerEntry, ...]]:
    """Groups hosts by their places."""
    groups: dict[Place, tuple[LedgerEntry, ...]] = {}
    for life in lives:
        groups[life.place] = (*groups.get(life.place, ()), life)
    return groups


def alive_elsewhere(run: Run, place: Place, lives: Sequence[LedgerEntry]) -> list[HostGroup]:
    """Returns the hosts that live in another region; the ledger learns of those that have ended.

    Raises:
        CloudError: AWS does not say.
    """
    there = run.at(run.given.moved(place.region))
    present = instances_by_id(there.aws, [life.id for life in lives])
    ids = {host.id for host in present if host.state in LIVE}
    with suppress(ConfigError):  # the ledger may be read-only here
        record_end(run.given, ended_ids(lives, ids, place.account), datetime.now(timezone.utc))
    alive = tuple(life for life in lives if life.id in ids)
    if not alive:
        return []
    region = place.region
    text = (
        f"{len(alive)} hosts of {run.given.name} run in {region} and cost too ({names(alive)}): "
        f"`status --region {region}` shows them, `shutdown --region {region}` ends them"
    )
    return [HostGroup(place, alive, text)]


def ended_ids(lives: Sequence[LedgerEntry], alive: set[str], account: str) -> list[str]:
    """Lists the hosts that have ended for certain: EC2 knows none of them, in their account."""
    settled = datetime.now(timezone.utc) - SETTLED
    return [life.id for life in lives
            if account and life.id not in alive
            and datetime.fromisoformat(life.launched) < settled]  # fmt: skip


def names(lives: Sequence[LedgerEntry]) -> str:
    """Lists the identifiers of hosts."""
    return ", ".join(life.id for life in lives)


def not_seen(lives: Sequence[LedgerEntry], place: Place) -> str:
    """Says which hosts are not seen, and where they may run."""
    return (
        f"NOT SEEN FROM HERE: {len(lives)} hosts of the ledger, which may run and cost "
        f"({names(lives)}): {place.text}"
    )


def unseen_text(run: Run, here: Place, place: Place, lives: Sequence[LedgerEntry]) -> str:
    """Formats hosts that commands from here do not see, with the command that does."""
    look = f"pytorch_ec2.py status --name {run.given.name} --region {place.region}"
    first = not_seen(lives, place)
    if place.endpoint != here.endpoint and place.endpoint:
        return (
            f"{first}. `{look} --endpoint-url {place.endpoint}` looks there; where that was the "
            "emulator of a rehearsal, its hosts were records and cost nothing: `shutdown --forget "
            f"{place.endpoint}` takes them out of the ledger"
        )
    if place.endpoint != here.endpoint:
        return (
            f"{first}. This command asks {here.endpoint}, left over from a rehearsal perhaps: "
            f"`unset AWS_ENDPOINT_URL`, leave --endpoint-url out, then `{look}` looks there"
        )
    if not here.account:
        return f"{first}. AWS does not say which account is asked here; `{look}` looks later"
    credentials = f"AWS_PROFILE={place.profile} " if place.profile else ""
    return (
        f"{first}. This command asks account {here.account}: `{credentials}{look}`, with "
        f"credentials of account {place.account}, looks there; where that is closed, `shutdown "
        f"--forget {place.account}` takes them out of the ledger"
    )


def cluster_instances(run: Run, states: Iterable[str] = LIVE) -> list[Instance]:
    """Lists the cluster's hosts, with those that have lost their tags, which a warning names."""
    return [*instances(run.aws, run.owned, states), *lost_hosts(run)]


def lost_hosts(run: Run) -> list[Instance]:
    """Lists live hosts of the cluster that lack a tag by which it is found.

    They are in the ledger, or their root disk carries the tags. A host that carries the name
    of another cluster or owner is not the cluster's any more.
    """
    recorded = {life.id for life in run.lives if run.place.covers(life.place)}
    disks = {disk.host for disk in volumes(run.aws, run.owned) if disk.root}
    lost = []
    for host in instances_by_id(run.aws, (recorded | disks) - {""}):
        if host.state not in LIVE or run.owned.describes(host.cluster, host.owner):
            continue
        if host.cluster in ("", run.owned.cluster) and host.owner in ("", run.owned.owner):
            lost.append(host)
            source = "the ledger" if host.id in recorded else "its disk"
            run.aws.warn(
                f"warning: {host.id} lives, and lacks the tags of the cluster (an edit by hand?): "
                f"{source} says that it belongs to {run.owned.cluster}; `shutdown` ends it"
            )
        elif host.id in recorded:
            run.aws.warn(
                f"warning: {host.id} was launched for {run.owned.cluster}, runs, and carries the "
                f"tags of cluster {host.cluster!r}, owner {host.owner!r}: these find it"
            )
    return lost
