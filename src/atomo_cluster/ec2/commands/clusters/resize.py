"""`resize`: changes the number of workers."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.arguments import CONVERTERS
from atomo_cluster.ec2.aws.deletion import END_S
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.commands.clusters import launch
from atomo_cluster.ec2.commands.clusters.origin import alive_jobs
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.hosts.host_files import host_records
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.places.scheduled_ends import forget_ends
from atomo_cluster.errors import CloudError, LeftBehind

HELP: Final = """\
  pytorch_ec2.py resize 8
  pytorch_ec2.py resize 2 --yes --json

Makes a cluster that runs one of N workers. More are launched as `launch` does it, with its plan,
checks and limits, into the cluster's zone. With fewer, those that were launched last are ended, and
their disks with them. A job over all hosts loses them: where one runs it is named in the question,
and `stop` has it write a checkpoint first. Afterwards `bootstrap` tells the hosts of each other,
and n_workers in cluster.yaml should say N."""


def arguments(parser: ArgumentParser) -> None:
    # The setting itself, with its bounds, for this once.
    parser.add_argument("set_n_workers", metavar="N", type=CONVERTERS[int],
                        help="workers afterwards")  # fmt: skip
    launch.arguments(parser)


def run(run: Run) -> int:
    hosts = instances(run.aws, run.owned)
    if not hosts:
        raise CloudError(f"cluster {run.cluster.name} has no hosts; `launch` starts them")
    if hosts[0].role != "master":
        raise CloudError(
            f"no host of {run.cluster.name} has the role master: its tag atomo:role says which it "
            "is, and is to be set by hand"
        )
    surplus = [host for host in hosts if host.role != "master"][run.cluster.n_workers :]
    return shrink(run, hosts, surplus) if surplus else launch.run(run.at(run.cluster))


def shrink(run: Run, hosts: list[Instance], surplus: list[Instance]) -> int:
    """Ends surplus hosts of a cluster."""
    ids = [host.id for host in surplus]
    run.say(f"{len(ids)} of {len(hosts)} hosts are to end:")
    for host in surplus:
        run.say(f"  {host.id} {host.type} {host.private_ip or ''}".rstrip())
    if run.options.dry_run:
        refusal = run.aws.refusal("ec2.terminate_instances", InstanceIds=ids)
        run.tell_dry_run({"ec2.terminate_instances": str(refusal or "")}, "ending them")
        return 0
    if jobs := alive_jobs(run, hosts[0]):
        run.say(
            f"{jobs}; a job over all hosts loses those that end: `stop JOB` has it write a "
            "checkpoint first, and the same `train` continues it afterwards"
        )
    run.confirm("End them all the same?" if jobs else "Proceed?")
    end(run, ids)
    forget_ends(run, ids)
    remaining = [host for host in hosts if host.id not in ids]
    show_hosts(run, remaining)
    run.say("next: `pytorch_ec2.py bootstrap`")
    run.tell(host_records(remaining))
    return 0


def end(run: Run, ids: list[str]) -> None:
    """Terminates hosts and waits for their end.

    Raises:
        LeftBehind: AWS refused, or the end is not confirmed.
    """
    try:
        run.aws.call("ec2.terminate_instances", InstanceIds=ids)
        run.aws.wait("instance_terminated", END_S, InstanceIds=ids)
    except CloudError as error:
        raise LeftBehind(
            f"{error}; these may still be there, and cost: {', '.join(ids)}. `status` tells, and "
            "`resize` again ends them"
        ) from error
