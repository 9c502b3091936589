"""Disks that someone attached to the cluster's hosts by hand: named, counted and never deleted.

They lack the cluster's tags, and may be anybody's data. They stay, and cost, when the hosts end.
"""

from typing import Final

from atomo_cluster.ec2.aws.inventory import LIVE, Disk, foreign_volumes, instances, volumes_of
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.errors import CloudError, LeftBehind

__all__ = ["check_foreign_disks", "foreign_disks", "tell_foreign_disks"]

REMEDY: Final = "`aws ec2 delete-volume --volume-id {}` deletes it"
UNKNOWN: Final = "AWS does not say whether disks are attached by hand, which would stay and cost"


def foreign_disks(run: Run) -> list[Disk] | CloudError:
    """Lists the disks attached by hand that stay when the cluster's hosts end.

    An error of AWS is returned, not raised: hosts end whatever AWS does not say.
    """
    try:
        hosts = [host.id for host in instances(run.aws, run.owned, LIVE)]
        return [disk for disk in foreign_volumes(run.aws, run.owned, hosts) if disk.outlives]
    except CloudError as error:
        return error


def tell_foreign_disks(run: Run) -> None:
    """Names the disks attached by hand."""
    disks = foreign_disks(run)
    if isinstance(disks, CloudError):
        run.say(f"  {UNKNOWN}: {disks}")
        return
    for disk in disks:
        run.say(f"  {disk_line(disk)}: stays, and costs; {REMEDY.format(disk.id)}")


def check_foreign_disks(run: Run, disks: list[Disk] | CloudError) -> None:
    """Raises LeftBehind if disks attached by hand outlive the hosts, or may do so.

    Args:
        run: the run, whose hosts have ended.
        disks: the disks before the end; an error: AWS did not say.
    """
    if isinstance(disks, CloudError):
        raise LeftBehind(f"the hosts have ended; {UNKNOWN}: {disks}; `aws ec2 describe-volumes "
                         f"--region {run.aws.region}` lists all disks") from disks  # fmt: skip
    remaining = still_there(run, disks)
    if not remaining:
        return
    run.tell({"foreign_disks": [vars(disk) for disk in remaining]})
    texts = [f"{disk_line(disk)} ({REMEDY.format(disk.id)})" for disk in remaining]
    raise LeftBehind(f"the hosts have ended; left alone, and costing: {'; '.join(texts)}")


def still_there(run: Run, disks: list[Disk]) -> list[Disk]:
    """Returns the disks that exist; all of them if AWS does not say."""
    if not disks:
        return []
    try:
        present = {disk.id for disk in volumes_of(run.aws, [disk.id for disk in disks])}
    except CloudError as error:
        run.say(f"AWS does not say which disks are left: {error}")
        return disks
    return [disk for disk in disks if disk.id in present]


def disk_line(disk: Disk) -> str:
    """Formats a disk for lists."""
    return f"volume {disk.id} ({disk.gb} GB {disk.kind}), attached by hand to {disk.host}"
