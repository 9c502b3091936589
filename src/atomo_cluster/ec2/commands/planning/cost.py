"""`cost`: past, present and possible costs of the cluster."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from atomo_cluster.ec2.aws.inventory import ENDED
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.invocation.tables import table
from atomo_cluster.ec2.money.costs import (
    NOT_SEEN,
    STOPPED,
    Cost,
    all_costs,
    cost_unseen,
    ended_elsewhere,
    of_images,
    with_ledger,
)
from atomo_cluster.ec2.money.foreign import costs_of_foreign
from atomo_cluster.ec2.money.prices import format_usd, sum_known
from atomo_cluster.ec2.money.survey import tell_place
from atomo_cluster.errors import CloudError

HELP: Final = """\
  pytorch_ec2.py cost
  pytorch_ec2.py cost --json

Changes nothing. Computed from start and end times, the disks that there are, and the prices of this
moment: the bill is in the AWS console. Hosts that have ended are in it, also after `shutdown`, as
this machine has them in state_dir; where nobody looked within an hour of an end, until the fuse at
most. A stopped host costs its disk; its last column is as if it were started now. Traffic to the
internet and shared folders (EFS) are not in it. Hosts in all regions count that the settings or
the ledger name. Hosts of the ledger that cannot be seen from here, as in another account, count as
if they ran until their fuses; it then ends with 10."""
COLUMNS: Final = ("host", "type", "hours", "per hour", "so far", "until the fuse")


def arguments(parser: ArgumentParser) -> None:
    """Adds no options."""


def run(run: Run) -> int:
    runs = run.everywhere()
    runs = [run] if len(runs) == 1 else runs
    others, unsaid = tell_place(run, runs), list[str]()
    costs = [cost for there in runs for cost in costs_in(there, len(runs) > 1, unsaid)]
    if not run.region_given:
        costs += ended_elsewhere(run, runs)
    costs += [cost_unseen(life) for group in others.unseen for life in group.lives]
    show(run, costs)
    unsaid += [group.text for group in others.unseen]
    run.tell({"place": asdict(runs[0].place), "unsaid": unsaid})
    if unsaid:  # the costs that are known are shown by now
        raise CloudError(f"not all is known: {'; '.join(unsaid)}")
    return 0


def costs_in(run: Run, several: bool, unsaid: list[str]) -> list[Cost]:
    """Returns the costs in a region; where it is one of several, an error goes to `unsaid`."""
    try:
        return [*with_ledger(run, all_costs(run)), *of_images(run), *costs_of_foreign(run)]
    except CloudError as error:
        if not several:
            raise
        unsaid.append(f"{run.aws.region}: {error}")
        lives = [life for life in run.lives if run.place.covers(life.place)]
        return [cost_unseen(life) for life in lives]


def show(run: Run, costs: Sequence[Cost]) -> None:
    """Shows the costs and their sum."""
    total = {key: sum_known([getattr(cost, key) for cost in costs]) for key in KEYS}
    shown = table(f"{run.cluster.name}, owner {run.owned.owner}", COLUMNS, right=COLUMNS[2:])
    for cost in costs:
        name = cost.type + NOTES.get(cost.state, "")
        shown.add_row(cost.id, name, f"{cost.hours:.2f}", *(amount(cost, key) for key in KEYS))
    hours = sum(cost.hours for cost in costs)
    shown.add_row("all", "", f"{hours:.2f}", *(as_money(total[key], key) for key in KEYS))
    run.show(shown)
    run.tell({"hosts": [asdict(cost) for cost in costs], "hours": hours, **total})


KEYS: Final = ("usd_per_hour", "usd_so_far", "usd_until_fuse")
NOTES: Final = dict.fromkeys(ENDED, ", ended") | {STOPPED: ", stopped", NOT_SEEN: ", not seen"}


def amount(cost: Cost, key: str) -> str:
    """Formats an amount of a row."""
    return as_money(getattr(cost, key), key)


def as_money(value: float | None, key: str) -> str:
    """Formats an amount; prices per hour get more digits."""
    return format_usd(value, 4 if key == KEYS[0] else 2)
