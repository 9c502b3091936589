"""The end of hosts in the ledger: of those that AWS no longer lists as alive, and by hand."""

from argparse import ArgumentParser
from datetime import datetime, timezone

from atomo_cluster.ec2.aws.inventory import LIVE, instances_by_id
from atomo_cluster.ec2.invocation.foreign_file import ForeignResource, write_foreign
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.ledger import drop_entries, record_end
from atomo_cluster.errors import CloudError, ConfigError

__all__ = ["add_forget", "close_ledger", "forget"]


def close_ledger(run: Run) -> list[str]:
    """Records in the ledger that the hosts of this place have ended, for `cost`.

    Returns:
        The hosts that live all the same, and what to do.
    """
    lives = [life for life in run.lives if run.place.covers(life.place)]
    try:
        present = instances_by_id(run.aws, [life.id for life in lives])
    except CloudError as error:
        run.say(f"not written down, since AWS does not say which hosts have ended: {error}")
        return []
    alive = {host.id: host for host in present if host.state in LIVE}
    try:
        ended = [life.id for life in lives if life.id not in alive]
        record_end(run.cluster, ended, datetime.now(timezone.utc))
    except ConfigError as error:  # which is no reason to say that something is left
        run.say(f"not written down: {error}")
    own = {life.id for life in lives if life.owner == run.owned.owner}
    return [
        f"{host.id} of the ledger runs and costs, with the tags of cluster {host.cluster!r}, owner "
        f"{host.owner!r}: `shutdown --name {host.cluster} --owner {host.owner}` ends that one"
        for host in alive.values()
        if host.id in own and not run.owned.describes(host.cluster, host.owner)
    ]


def add_forget(parser: ArgumentParser) -> None:
    """Adds --forget."""
    parser.add_argument("--forget", metavar="PLACE", default="",
                        help="end nothing; take the hosts at an endpoint, or in an account, that "
                        "is no more out of the ledger, or a disk or address that stays, by its "
                        "id")  # fmt: skip


def forget_foreign(run: Run, resource: ForeignResource) -> int:
    """Takes a resource that was attached by hand, and that somebody keeps, out of the file."""
    run.say(f"{resource.line}: nothing deletes it, and it costs")
    run.confirm("Name it no more?")
    write_foreign(run.given, [other for other in run.foreign if other.id != resource.id])
    run.tell({"forgotten": [resource.id]})
    return 0


def forget(run: Run, place: str) -> int:
    """Takes hosts out of the ledger that this command cannot see, and that may run.

    Raises:
        ConfigError: the ledger has none there, or this command can see them.
    """
    if resource := next((resource for resource in run.foreign if resource.id == place), None):
        return forget_foreign(run, resource)
    lives = [life for life in run.lives if place.rstrip("/") in (
        life.endpoint.rstrip("/"), life.account)]  # fmt: skip
    ids = ", ".join(life.id for life in lives)
    if not place or not lives:
        known = sorted({life.place.text for life in run.lives})
        raise ConfigError(
            f"--forget {place}: the ledger has no hosts there that may run; it has hosts in: "
            f"{'; '.join(known) or 'no place'}"
        )
    here = run.accepted()[0].place
    if visible := [life.id for life in lives if here.sees(life.place)]:
        raise ConfigError(
            f"--forget {place}: this command can see {', '.join(visible)} ({here.text}); "
            "`shutdown` without --forget ends them"
        )
    run.say(f"{ids}: nothing ends them; where {place} still is, they may run and cost")
    run.confirm("Take them out of the ledger?")
    drop_entries(run.given, [life.id for life in lives])
    run.say(f"the ledger has forgotten {ids}")
    run.tell({"forgotten": [life.id for life in lives]})
    return 0
