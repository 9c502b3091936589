"""`shutdown`: the end of a cluster, verified."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.inventory import Thing, everything, namesakes
from atomo_cluster.ec2.removal import refusals, remove
from atomo_cluster.ec2.run import Run
from atomo_cluster.errors import CloudError, LeftBehind

HELP: Final = """\
  pytorch_ec2.py shutdown
  pytorch_ec2.py shutdown --name other --yes
  pytorch_ec2.py shutdown --dry-run

Ends everything that carries the cluster's and the owner's tags, and nothing else: instances, fleets
and spot requests, disks, security group, placement group, and the key pair if it was made with the
cluster. Then it searches for the tags again and says what it found. Shared folders (EFS) stay."""


def arguments(parser: ArgumentParser) -> None:
    """Adds the options of this command."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip


def run(run: Run) -> int:
    """Ends the cluster."""
    things = everything(run.aws, run.owned.filters())
    show(run, things)
    if run.options.dry_run:
        return rehearse(run, things)
    if things:
        run.confirm("End all of these?")
    end(run)
    run.tell({"deleted": [vars(thing) for thing in things], "left": []})
    return 0


def show(run: Run, things: list[Thing]) -> None:
    """Lists what the cluster consists of."""
    run.say(f"{run.cluster.name}, owner {run.owned.owner}, {run.aws.region}: {len(things)} things")
    for thing in things:
        run.say(f"  {thing.kind} {thing.id} {thing.state}".rstrip())


def end(run: Run) -> None:
    """Deletes everything and says that it is gone.

    Raises:
        LeftBehind: something is still there.
    """
    left = remove(run.aws, run.owned.filters(), run.say)
    if left:
        run.tell({"left": [vars(thing) for thing in left]})
        listed = ", ".join(f"{thing.kind} {thing.id} {thing.state}".rstrip() for thing in left)
        raise LeftBehind(
            f"still there: {listed}. Run `shutdown` again; if that does not help, delete them in "
            "the EC2 console"
        )
    for owner, count in namesakes(run.aws, run.owned).items():
        run.say(
            f"left alone: {count} hosts of a cluster of the same name, whose owner is {owner!r}; "
            f"if that is you too, say --owner {owner}"
        )
    run.say(
        f"verified: nothing in {run.aws.region} carries the tags of {run.cluster.name}, "
        f"owner {run.owned.owner}, any more"
    )


def rehearse(run: Run, things: list[Thing]) -> int:
    """Shows what EC2's DryRun says."""
    verdicts = refusals(run.aws, things)
    for action, refusal in verdicts.items():
        run.say(f"dry run  {action}: {refusal or 'EC2 would do it'}")
    run.tell({"dry_run": verdicts})
    told = [refusal for refusal in verdicts.values() if refusal]
    if told:
        raise CloudError(f"the shutdown would fail: {told[0]}")
    return 0
