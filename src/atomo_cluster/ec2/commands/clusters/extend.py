"""`extend`: moves the fuses of the hosts to a later time.

The hosts move first and the tags last, so that a tag never shows a later fuse than its host has.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from atomo_cluster.arguments import CONVERTERS
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.aws.tags import HOURS
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.hosts.fuses import extended, move_fuse, read_deadline, tag_hours
from atomo_cluster.ec2.hosts.host_files import host_records
from atomo_cluster.ec2.hosts.ssh import UNREACHED, Answer, Host, on_all_hosts
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.budget import check_budget
from atomo_cluster.ec2.money.costs import ended_usd, usd_until_fuses
from atomo_cluster.ec2.money.ledger import record_fuses
from atomo_cluster.ec2.money.prices import format_usd, sum_known
from atomo_cluster.ec2.places.aws_ends import EndFailure, set_ends
from atomo_cluster.ec2.targets.each_host import finish
from atomo_cluster.ec2.targets.selection import host_keys, hosts_of, ssh_of
from atomo_cluster.errors import CloudError, ConfigError, RemoteError

HELP: Final = """\
  pytorch_ec2.py extend 4
  pytorch_ec2.py extend 12 --max-usd 50 --yes --json

Moves the fuse of every running host: they end so many hours from now. Says what the cluster then
costs at most, and asks. It may be given again, and never makes a fuse earlier: a host with a later
one keeps it. A host that cannot be reached keeps its old fuse, which `status` goes on showing."""
LONGEST_H: Final = 720.0


@dataclass(frozen=True)
class Move:
    """A host, with its present and its later fuse."""

    host: Host
    present: Instance
    later: Instance

    @property
    def fuses(self) -> str:
        """The two times."""
        return f"{end_of(self.present)} or {end_of(self.later)}"


def end_of(host: Instance) -> str:
    """Formats the time of a host's fuse."""
    return f"{host.fuse:%F %R} UTC" if host.fuse_known else "an unknown time"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("hours", metavar="HOURS", type=CONVERTERS[float],
                        help="from now until the hosts end themselves")  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip
    parser.set_defaults(hostfile=None)  # hosts of one's own have no fuse


def run(run: Run) -> int:
    if not 0.1 <= run.options.hours <= LONGEST_H:
        raise ConfigError(f"HOURS must be from 0.1 to {LONGEST_H:g}, got {run.options.hours:g}")
    hosts = instances(run.aws, run.owned, ["running"])
    if not hosts:
        raise CloudError(f"cluster {run.cluster.name} has no running hosts; `launch` starts them")
    moves = planned(run, hosts)
    show_price(run, hosts, moves)
    if run.options.dry_run:
        return rehearse(run, moves)
    run.confirm("Move the fuses?")
    answers = move_hosts(run, moves)
    moved = [move for move, answer in zip(moves, answers, strict=True) if not answer.code]
    report_failures(run, moves, answers)
    tagged, refusals = tag_hosts(run, moved)
    write_down(run, tagged)
    later = {move.host.id: move.later for move in tagged}
    shown = [later.get(host.id, host) for host in hosts]
    show_hosts(run, shown)
    run.tell(host_records(shown))
    end_failure = set_ends(run.aws, run.cluster, run.owned, shown)
    if refusals:
        raise CloudError("; ".join(map(str, refusals)), refusals[0].code)
    finish(answers, shown=False)
    check_moved(run, end_failure)
    return 0


def check_moved(run: Run, failure: EndFailure | None) -> None:
    """Raises CloudError if the ends by AWS have not moved with the fuses.

    An identity that may not look at schedules has made none, and gets a warning.
    """
    if failure is None:
        return
    text = (
        f"THE FUSES HAVE MOVED, AND THE ENDS BY AWS PERHAPS NOT: {failure.text}. Where a launch "
        f"has scheduled them (group {run.owned.label} in EventBridge Scheduler), AWS terminates "
        "the hosts 15 minutes after their old fuses: `extend` again moves both"
    )
    if failure.is_error(run.cluster):
        raise CloudError(text)
    run.warn(text)


def rehearse(run: Run, moves: Sequence[Move]) -> int:
    """Reports the prediction of DryRun."""
    tag = {"Key": HOURS, "Value": f"{moves[0].later.max_hours:.4f}"}
    ids = [move.host.id for move in moves]
    refusal = run.aws.refusal("ec2.create_tags", Resources=ids, Tags=[tag])
    run.tell_dry_run({"ec2.create_tags": str(refusal or "")}, "moving the fuses")
    return 0


def planned(run: Run, hosts: Sequence[Instance]) -> list[Move]:
    """Lists the hosts whose fuses move; reports those that keep a later fuse.

    Raises:
        ConfigError: every fuse is later already.
    """
    until = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=run.options.hours)
    moves = [
        Move(host, instance, extended(instance, until))
        for host, instance in zip(hosts_of(run, hosts), hosts, strict=True)
        if not instance.fuse_known or instance.fuse <= until
    ]
    if not moves:
        first = min(host.fuse for host in hosts)
        raise ConfigError(
            f"all fuses are later already, the first at {first:%F %R} UTC; give more HOURS"
        )
    moving = {move.host.id for move in moves}
    for host in hosts:
        if host.id not in moving:
            run.say(f"{host.id} {host.role}: keeps its fuse at {end_of(host)}, which is "
                    "later")  # fmt: skip
    return moves


def show_price(run: Run, hosts: Sequence[Instance], moves: Sequence[Move]) -> None:
    """Shows the later fuses and an upper bound on the cost, and checks the budget."""
    for move in moves:
        times = f"{end_of(move.later)} instead of {end_of(move.present)}"
        run.say(f"{move.host.id} {move.present.type} {move.present.role}: ends at {times}")
    later = {move.host.id: move.later for move in moves}
    present, ended = usd_until_fuses(run, hosts), spent(run)
    bound = usd_until_fuses(run, [later.get(host.id, host) for host in hosts])
    total, before = sum_known([bound, ended]), sum_known([present, ended])
    run.say(f"at most {format_usd(total)} until the fuses, past costs included; now it is "
            f"{format_usd(before)}")  # fmt: skip
    check_budget(run.cluster.max_usd, [bound, ended])


def spent(run: Run) -> float | None:
    """Returns USD spent on hosts that have ended; None: unknown."""
    try:
        return ended_usd(run)
    except ConfigError as error:
        if run.cluster.max_usd is not None:
            raise
        run.say(f"past costs are unknown: {error}")
        return None


def move_hosts(run: Run, moves: Sequence[Move]) -> list[Answer]:
    """Moves the fuses on the hosts; an interrupt moves them back."""
    ssh = ssh_of(run)
    keys = host_keys(run, ssh)

    def act(move: Move) -> Answer:
        try:
            keys.pin(move.host)
        except RemoteError as error:
            return Answer(move.host, UNREACHED, "", str(error))
        answer = move_fuse(ssh, move.host, move.later.fuse)
        lost = answer.code == UNREACHED  # the order may have arrived, and the answer not
        arrived = lost and read_deadline(ssh, move.host) == move.later.fuse
        return Answer(move.host, 0, "", "") if arrived else answer

    return or_back(run, moves, lambda: on_each_move(moves, act))


def on_each_move(moves: Sequence[Move], act: Callable[[Move], Answer]) -> list[Answer]:
    """Calls `act` for all moves in parallel."""
    move_of = {move.host.id: move for move in moves}
    return on_all_hosts([move.host for move in moves], lambda host: act(move_of[host.id]))


def report_failures(run: Run, moves: Sequence[Move], answers: Sequence[Answer]) -> None:
    """Reports the fuses of hosts that failed."""
    for move, answer in zip(moves, answers, strict=True):
        if answer.code == UNREACHED:
            run.say(f"{move.host.id} does not answer: it ends at {end_of(move.present)}, "
                    "unless the order arrived; `extend` again moves its fuse")  # fmt: skip
        elif answer.code:
            run.say(f"{move.host.id}: its fuse stays at {end_of(move.present)}, and "
                    "`extend` again moves it")  # fmt: skip


def tag_hosts(run: Run, moved: Sequence[Move]) -> tuple[list[Move], list[CloudError]]:
    """Tags the hosts with their new fuses; moves a fuse back whose tag AWS refuses.

    Returns:
        The hosts that are tagged, and the refusals.
    """
    tagged, refused, refusals = list[Move](), list[Move](), list[CloudError]()

    def act() -> None:
        for move in moved:
            try:
                tag_hours(run.aws, move.host.id, move.later.max_hours)
                tagged.append(move)
            except CloudError as error:
                refused.append(move)
                refusals.append(error)

    try:
        act()
    except KeyboardInterrupt:
        done = {move.host.id for move in tagged}
        move_back(run, [move for move in moved if move.host.id not in done])
        raise
    move_back(run, refused)
    return tagged, refusals


def or_back(run: Run, moves: Sequence[Move], act: Callable[[], list[Answer]]) -> list[Answer]:
    """Returns the result of `act`; an interrupt moves all fuses back."""
    try:
        return act()
    except KeyboardInterrupt:
        move_back(run, moves)
        raise


def move_back(run: Run, moves: Sequence[Move]) -> None:
    """Moves fuses back to those that the tags show, and reports the result for each host."""
    ssh = ssh_of(run)

    def act(move: Move) -> Answer:
        if not move.present.fuse_known:
            return Answer(move.host, UNREACHED, "", "")
        return move_fuse(ssh, move.host, move.present.fuse)

    answers = on_each_move(moves, act)
    for move, answer in zip(moves, answers, strict=True):
        if answer.code:
            run.say(f"{move.host.id} RUNS UNTIL {move.fuses}: its tag shows the former, and moving "
                    "it back failed; `extend` again, or `shutdown`")  # fmt: skip
        else:
            run.say(f"{move.host.id}: its fuse is back at {end_of(move.present)}")


def write_down(run: Run, moved: Sequence[Move]) -> None:
    """Records the later fuses in the ledger."""
    fuses = {move.host.id: move.later.fuse for move in moved}
    try:
        record_fuses(run.cluster, run.owned.owner, fuses)
    except ConfigError as error:  # which is no reason to let hosts end
        run.say(f"not written down: {error}")
