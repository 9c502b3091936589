"""`list_running_instances`: lists the hosts of all clusters of the owner."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.aws.inventory import owners_instances
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.hosts.host_files import host_records
from atomo_cluster.ec2.invocation.run import Run

HELP: Final = """\
  pytorch_ec2.py list_running_instances
  pytorch_ec2.py list_running_instances --region us-west-2 --json

Of every cluster that you own in the region, whatever its name."""


def arguments(parser: ArgumentParser) -> None:
    """Adds no options."""


def run(run: Run) -> int:
    hosts = owners_instances(run.aws, run.owned.owner, ["pending", "running"])
    if hosts:
        show_hosts(run, hosts)
    run.say(f"{len(hosts)} running in {run.aws.region}, owner {run.owned.owner}")
    run.tell(host_records(hosts))
    return 0
