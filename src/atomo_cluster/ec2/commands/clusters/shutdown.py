"""`shutdown`: ends a cluster, and verifies it."""

from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from atomo_cluster.ec2.aws.deletion import (
    delete,
    delete_until_gone,
    refusals,
    remains,
    resource_line,
)
from atomo_cluster.ec2.aws.inventory import namesakes, namesakes_text
from atomo_cluster.ec2.aws.search import Resource, SearchResult, find_resources
from atomo_cluster.ec2.commands.clusters.foreign_resources import (
    check_foreign,
    find_foreign,
    record_foreign,
    tell_foreign,
)
from atomo_cluster.ec2.commands.clusters.ledger_end import add_forget, close_ledger, forget
from atomo_cluster.ec2.commands.clusters.origin import tell_origin
from atomo_cluster.ec2.images.baked import baked
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.survey import Survey, lost_hosts, tell_place
from atomo_cluster.ec2.places.aws_ends import remove_group
from atomo_cluster.errors import CloudError, ClusterError, LeftBehind

HELP: Final = """\
  pytorch_ec2.py shutdown
  pytorch_ec2.py shutdown --name other --yes
  pytorch_ec2.py shutdown --dry-run

Ends everything that carries the cluster's and the owner's tags, and nothing else: instances, fleets
and spot requests, disks, security group, placement group, and the key pair if it was made with the
cluster. Then it searches for the tags again and says what it found. Where the regions of the
settings have no hosts, it looks into those that the ledger of this machine names. Hosts of the
ledger that it cannot see, as in another account, may run and cost: it says where, and ends with 14.
Shared folders (EFS) and images that `bake` has made stay."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip
    add_forget(parser)


def run(run: Run) -> int:
    if run.options.forget:
        return forget(run, run.options.forget)
    runs = regions_to_end(run)
    others = tell_place(run, runs)
    results = [
        find_resources(region_run.aws, region_run.owned.filters(), region_run.cluster.makes_roles)
        for region_run in runs
    ]
    for region_run, there in zip(runs, results, strict=True):
        show(region_run, there)
    if run.options.dry_run:
        for region_run, there in zip(runs, results, strict=True):
            rehearse(region_run, there.complete())
        return 0
    if any(there.things or there.errors for there in results):
        run.confirm("End all of these?")
    end_each(runs, others)
    run.tell(
        {"deleted": [vars(resource) for there in results for resource in there.things], "left": []}
    )
    return 0


def regions_to_end(run: Run) -> list[Run]:
    """Returns the run in each region to end: in those of the ledger if no accepted one has hosts.

    Hosts in both are two clusters of one name, of which the settings mean theirs.
    """
    accepted, recorded = run.accepted(), run.recorded()
    try:
        if not recorded or any(region_run.has_hosts() for region_run in accepted):
            return accepted
    except CloudError:  # the search says so again, and the survey names the others
        return accepted
    return [*accepted, *recorded]


def end_each(runs: Sequence[Run], others: Survey) -> None:
    """Ends the cluster in every region, even if one fails.

    Raises:
        LeftBehind: something is left, or hosts of the ledger were not seen.
    """
    failures: list[ClusterError] = []
    for region_run in runs:
        try:
            end(region_run, verified=not others.unseen)
            check_namesakes(region_run)
        except ClusterError as error:
            failures.append(error)
    groups = others.unseen if runs[0].region_given else (*others.elsewhere, *others.unseen)
    if groups:
        runs[0].tell({"not_ended": [group.record for group in groups]})
        failures += [LeftBehind(group.text) for group in groups]
    if len(failures) > 1:
        raise LeftBehind("; ".join(map(str, failures))) from failures[0]
    if failures:
        raise failures[0]


def show(run: Run, result: SearchResult) -> None:
    """Lists the resources of the cluster, and the origin of hosts launched elsewhere."""
    count, owned = len(result.things), run.owned
    run.say(f"{owned.cluster}, owner {owned.owner}, {run.aws.region}: {count} things")
    for resource in result.things:
        run.say(f"  {resource_line(resource)}")
    for error in result.errors:
        run.say(f"  AWS does not say all: {error}")
    tell_lost(run)
    tell_foreign(run)
    if any(resource.kind == "instance" for resource in result.things):
        tell_origin(run)


def tell_lost(run: Run) -> None:
    """Names the hosts of the cluster that lack its tags."""
    with suppress(CloudError):  # `end` asks again, and does not hide an error
        for host in lost_hosts(run):
            run.say(f"  instance {host.id} {host.state}, without the tags of the cluster")


def end_lost(run: Run) -> list[str]:
    """Ends the hosts of the cluster that lack its tags; returns the refusals of AWS."""
    try:
        hosts = lost_hosts(run)
    except CloudError as error:
        return [f"hosts that lack the tags are not known: {error}"]
    things = [Resource("instance", host.id, host.state) for host in hosts]
    refused = delete(run.aws, things, run.say)
    ids = ", ".join(host.id for host in hosts)
    return [f"still there, and costing: {ids}: {refusal}" for refusal in refused]


def end(run: Run, verified: bool = True) -> None:
    """Deletes all resources of the cluster and reports their end.

    Args:
        run: the run, in one region.
        verified: False: the ledger has hosts that are not seen from here.

    Raises:
        LeftBehind: some still exist, or may exist; or resources that were attached by hand.
    """
    roles, foreign = run.cluster.makes_roles, find_foreign(run)
    record_foreign(run, foreign.resources)
    left = end_lost(run)
    remaining = delete_until_gone(run.aws, run.owned.filters(), run.say, makes_roles=roles)
    if remaining.things or remaining.errors:
        run.tell(
            {
                "left": [vars(resource) for resource in remaining.things],
                "errors": list(remaining.errors),
            }
        )
        left.append(
            f"{remains(remaining)}. Run `shutdown` again; if that does not help, delete them in "
            "the EC2 console"
        )
    left += close_ledger(run)
    if left:
        raise LeftBehind("; ".join(left))
    tell_verdict(run, with_schedules(run, remaining), verified)
    tell_images(run)
    check_foreign(run, foreign)


def with_schedules(run: Run, result: SearchResult) -> SearchResult:
    """Deletes the schedules of ends by AWS, and their role; neither costs anything.

    Returns the result of the search, with the schedules where they are perhaps left.
    """
    try:
        if stays := remove_group(run.aws, run.cluster, run.owned):
            run.say(stays)
    except CloudError as error:
        return replace(result, unseen=(*result.unseen, str(error)))
    return result


def tell_verdict(run: Run, remaining: SearchResult, verified: bool) -> None:
    """Reports that nothing is left, and whether all was looked at."""
    nothing = (
        f"nothing in {run.aws.region} carries the tags of {run.cluster.name}, "
        f"owner {run.owned.owner}, any more"
    )
    if not remaining.unseen:
        run.say(f"verified: {nothing}" if verified else f"{nothing}, and hosts elsewhere may run")
        return
    run.tell({"unseen": list(remaining.unseen)})
    run.say(
        f"{nothing}, as far as this identity may look; NOT LOOKED AT: "
        f"{'; '.join(remaining.unseen)}; these cost nothing"
    )


def tell_images(run: Run) -> None:
    """Reports the images that `bake` has made: they outlive the cluster and cost."""
    try:
        image_ids = [image.id for image in baked(run.aws, run.owned)]
    except CloudError as error:
        run.say(f"AWS does not say whether images of it are left, which cost: {error}")
        return
    if image_ids:
        run.say(
            f"baked images stay, and cost: {', '.join(image_ids)}; `delete_images` deletes them"
        )


def check_namesakes(run: Run) -> None:
    """Raises LeftBehind if another owner has hosts in a cluster of this name."""
    if hosts_of_owner := namesakes(run.aws, run.owned):
        run.tell({"left": [], "namesakes": hosts_of_owner})
        raise LeftBehind(
            f"left alone: {namesakes_text(run.owned, hosts_of_owner)}; if that is you too, end "
            f"them with --owner {min(hosts_of_owner)}"
        )


def rehearse(run: Run, resources: list[Resource]) -> int:
    """Reports the predictions of DryRun."""
    run.tell_dry_run(refusals(run.aws, resources), "the shutdown")
    return 0
