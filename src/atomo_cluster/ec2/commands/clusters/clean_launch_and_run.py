"""`clean_launch_and_run`: shutdown, launch, bootstrap and train in one command."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.aws.search import find_resources
from atomo_cluster.ec2.commands.clusters import launch, shutdown
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.commands.hosts.bootstrap import add_site, set_up
from atomo_cluster.ec2.commands.jobs.train import add_manner, train
from atomo_cluster.ec2.commands.planning.plan import present
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.launching import launch as launch_hosts
from atomo_cluster.ec2.launch.lock import launch_lock
from atomo_cluster.ec2.launch.plan import make_plan
from atomo_cluster.ec2.money.survey import tell_cluster_place
from atomo_cluster.ec2.places.network import allowed_cidr
from atomo_cluster.ec2.places.scheduled_ends import check_ends, schedule_ends
from atomo_cluster.ec2.targets.selection import cluster_hosts
from atomo_cluster.errors import ConfigError

HELP: Final = """\
  pytorch_ec2.py clean_launch_and_run -- --network LeNet --dataset MNIST
  pytorch_ec2.py clean_launch_and_run --yes --then-shutdown -- --epochs 30

Ends the cluster of this name if there is one, then launch, bootstrap and train. It asks once, with
the plan. The cluster goes on costing afterwards, unless --then-shutdown."""
PASSES_ON: Final = True


def arguments(parser: ArgumentParser) -> None:
    parser.set_defaults(hostfile=None)
    add_site(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip
    add_manner(parser)
    parser.add_argument("--then-shutdown", action="store_true",
                        help="end the cluster after the training, however that ends")  # fmt: skip


def run(run: Run) -> int:
    """Ends the cluster, launches it anew, sets it up and trains."""
    if run.options.detach and run.options.then_shutdown:
        raise ConfigError("--detach leaves the training running, --then-shutdown would end it")
    if run.cluster.supervise and run.options.then_shutdown:
        raise ConfigError("supervise: yes ends the hosts after the job; leave --then-shutdown out")
    if len(run.given.all_regions) > 1:
        raise ConfigError("clean_launch_and_run takes one region; leave regions empty")
    tell_cluster_place(run)
    result = find_resources(run.aws, run.owned.filters(), run.cluster.makes_roles)
    resources = result.complete()
    plan = make_plan(run.aws, run.cluster, run.owned, afresh=True)
    cidr = allowed_cidr(run.cluster)
    shutdown.show(run, result)
    present(run, plan, cidr)
    launch.check(run, plan)
    if run.options.dry_run:
        shutdown.rehearse(run, resources)
        return launch.rehearse(run, plan)
    with launch_lock(run.cluster.state, run.cluster.name):
        run.confirm("End all of these, then launch?" if resources else "Proceed?")
        shutdown.end(run)
        made = launch_hosts(run.aws, plan, cidr, run.say)
    launch.write_down(run, plan, made)
    show_hosts(run, made)
    failure = schedule_ends(run, made)
    try:
        check_ends(run, made, failure)
        hosts = cluster_hosts(run)
        set_up(run, hosts)
        return train(run, hosts, run.options.passed_on)
    finally:
        if run.options.then_shutdown:
            shutdown.end(run)
