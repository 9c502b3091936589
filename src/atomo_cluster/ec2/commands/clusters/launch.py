"""`launch`: starts the cluster, or its missing hosts."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.checks.preflight import validate
from atomo_cluster.ec2.checks.results import UNKNOWN, CheckContext
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.commands.planning.plan import show
from atomo_cluster.ec2.commands.planning.validate import refuse
from atomo_cluster.ec2.hosts.host_files import host_records
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.launching import dry_run
from atomo_cluster.ec2.launch.lock import launch_lock
from atomo_cluster.ec2.launch.offers import checked_offers, launch_first_available, offers
from atomo_cluster.ec2.launch.plan import Plan
from atomo_cluster.ec2.money.budget import check_budget, limit_excess
from atomo_cluster.ec2.money.costs import ended_usd, ledger_entry
from atomo_cluster.ec2.money.ledger import LedgerEntry, clear_entries, record_entries
from atomo_cluster.ec2.money.prices import sum_known
from atomo_cluster.ec2.places.network import allowed_cidr
from atomo_cluster.ec2.places.scheduled_ends import check_ends, schedule_ends
from atomo_cluster.ec2.settings.place import Place
from atomo_cluster.errors import ConfigError

HELP: Final = """\
  pytorch_ec2.py launch
  pytorch_ec2.py launch --dry-run
  pytorch_ec2.py launch --n-workers 8 --method on-demand --yes --json

Shows the plan, checks everything, and asks. Run again, it starts only missing hosts, such as spot
workers that AWS took back. If anything fails, the started hosts are ended. Each host
ends itself after max_hours."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip


def run(run: Run) -> int:
    """Launches, and shows the hosts; one launch at a time on this machine."""
    if run.options.dry_run:
        return launched(run)
    with launch_lock(run.given.state, run.given.name):
        return launched(run)


def launched(run: Run) -> int:
    """Shows the plan, checks, asks and launches."""
    offers_in_order = offers(run)
    if len(offers_in_order) > 1:
        offers_in_order = checked_offers(run, offers_in_order, check)
    cidr = allowed_cidr(run.given)
    show(run, offers_in_order, cidr)
    if len(offers_in_order) == 1:
        check(offers_in_order[0].run, offers_in_order[0].plan)
    if run.options.dry_run:
        return rehearse(offers_in_order[0].run, offers_in_order[0].plan)
    if offers_in_order[0].plan.groups:
        run.confirm()
    offer, hosts = launch_first_available(run, offers_in_order, cidr)
    write_down(offer.run, offer.plan, hosts)
    failure = schedule_ends(offer.run, hosts)
    report(offer.run, hosts)
    check_ends(offer.run, hosts, failure)
    return 0


def write_down(run: Run, plan: Plan, hosts: list[Instance]) -> None:
    """Records the hosts and their prices in the ledger."""
    try:
        if not plan.running:
            clear_entries(run.cluster, run.owned.owner, run.place)
        record_entries(run.cluster, run.owned.owner, [
            priced(plan, host, run.place) for host in hosts
        ])  # fmt: skip
    except ConfigError as error:  # the hosts run all the same
        run.say(f"not written down: {error}")


def priced(plan: Plan, host: Instance, place: Place) -> LedgerEntry:
    """Returns the ledger entry of a new host, with its present price."""
    disk = plan.prices.disk_hour(plan.cluster.volume_gb)
    parts = [plan.prices.hourly(host.type, host.spot, host.zone), disk, plan.address(plan.subnet)]
    return ledger_entry(host, host.fuse, False, sum_known(parts), place)


def check(run: Run, plan: Plan) -> None:
    """Runs every check, and reports unknown results."""
    if plan.groups and run.cluster.max_usd is not None:
        # A launch without running hosts begins a new ledger: earlier costs do not count.
        ended = ended_usd(run) if plan.running else 0.0
        check_budget(plan.cluster.max_usd, [plan.total, ended])
    elif plan.running:
        tell_excess(run, plan)
    findings = validate(CheckContext(run.aws, run.cluster, run.owned))
    refuse(findings)
    for finding in findings:
        if finding.outcome == UNKNOWN:
            run.say(f"unknown  {finding.check}: {finding.text}")


def tell_excess(run: Run, plan: Plan) -> None:
    """Reports that a complete cluster may cost more than `max_usd`: `launch` ends no hosts."""
    limit = run.cluster.max_usd
    if limit is None:
        return
    if excess := limit_excess(limit, sum_known([plan.total, ended_usd(run)])):
        run.say(
            f"MAX_USD DOES NOT HOLD: {excess}; the hosts run on: `resize` ends some, `shutdown` all"
        )


def rehearse(run: Run, plan: Plan) -> int:
    """Reports the predictions of DryRun."""
    run.tell_dry_run(dry_run(run.aws, plan), "the launch")
    return 0


def report(run: Run, hosts: list[Instance]) -> None:
    """Shows the cluster."""
    show_hosts(run, hosts)
    run.say("next: `pytorch_ec2.py bootstrap`, then `train`; `shutdown` ends it")
    run.tell(host_records(hosts))
