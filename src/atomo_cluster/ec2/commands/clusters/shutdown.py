"""`shutdown`: ends a cluster, and verifies it."""

from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

from atomo_cluster.ec2.aws.deletion import delete_until_gone, refusals, remains, resource_line
from atomo_cluster.ec2.aws.inventory import namesakes, namesakes_text
from atomo_cluster.ec2.aws.search import Resource, SearchResult, find_resources
from atomo_cluster.ec2.commands.clusters.foreign_disks import (
    check_foreign_disks,
    foreign_disks,
    tell_foreign_disks,
)
from atomo_cluster.ec2.commands.clusters.origin import tell_origin
from atomo_cluster.ec2.hosts.aws_ends import remove_group
from atomo_cluster.ec2.images.baked import baked
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.ledger import record_end
from atomo_cluster.errors import CloudError, ClusterError, ConfigError, LeftBehind

HELP: Final = """\
  pytorch_ec2.py shutdown
  pytorch_ec2.py shutdown --name other --yes
  pytorch_ec2.py shutdown --dry-run

Ends everything that carries the cluster's and the owner's tags, and nothing else: instances, fleets
and spot requests, disks, security group, placement group, and the key pair if it was made with the
cluster. Then it searches for the tags again and says what it found. Shared folders (EFS) and
images that `bake` has made stay."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip


def run(run: Run) -> int:
    runs = run.everywhere()
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
    end_each(runs)
    run.tell(
        {"deleted": [vars(resource) for there in results for resource in there.things], "left": []}
    )
    return 0


def end_each(runs: Sequence[Run]) -> None:
    """Ends the cluster in every region, even if one fails."""
    failures: list[ClusterError] = []
    for region_run in runs:
        try:
            end(region_run)
            check_namesakes(region_run)
        except ClusterError as error:
            failures.append(error)
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
    if any(resource.kind == "instance" for resource in result.things):
        tell_foreign_disks(run)
        tell_origin(run)


def end(run: Run) -> None:
    """Deletes all resources of the cluster and reports their end.

    Raises:
        LeftBehind: some still exist, or may exist; or disks that were attached by hand.
    """
    roles, disks = run.cluster.makes_roles, foreign_disks(run)
    remaining = delete_until_gone(run.aws, run.owned.filters(), run.say, makes_roles=roles)
    if remaining.things or remaining.errors:
        run.tell(
            {
                "left": [vars(resource) for resource in remaining.things],
                "errors": list(remaining.errors),
            }
        )
        raise LeftBehind(
            f"{remains(remaining)}. Run `shutdown` again; if that does not help, delete them in "
            "the EC2 console"
        )
    write_down(run)
    end_schedules(run)
    tell_verdict(run, remaining)
    tell_images(run)
    check_foreign_disks(run, disks)


def end_schedules(run: Run) -> None:
    """Deletes the schedules of ends by AWS, and their role; neither costs anything."""
    if error := remove_group(run.aws, run.cluster, run.owned):
        run.say(
            f"the schedules of ends by AWS or their role may be left, and cost nothing: {error}"
        )


def tell_verdict(run: Run, remaining: SearchResult) -> None:
    """Reports that nothing is left, and whether all was looked at."""
    nothing = (
        f"nothing in {run.aws.region} carries the tags of {run.cluster.name}, "
        f"owner {run.owned.owner}, any more"
    )
    if not remaining.unseen:
        run.say(f"verified: {nothing}")
        return
    run.tell({"unseen": list(remaining.unseen)})
    run.say(
        f"{nothing}, as far as this identity may look; NOT LOOKED AT: roles and instance profiles "
        f"in IAM, which cost nothing ({'; '.join(remaining.unseen)})"
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


def write_down(run: Run) -> None:
    """Records the end of the hosts in the ledger, for `cost`."""
    try:
        record_end(run.cluster, run.owned.owner, datetime.now(timezone.utc))
    except ConfigError as error:  # which is no reason to say that something is left
        run.say(f"not written down: {error}")


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
