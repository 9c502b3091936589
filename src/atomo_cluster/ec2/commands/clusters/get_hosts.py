"""`get_hosts`: writes the files that list the hosts."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.hosts.host_files import host_records, write_host_files
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.errors import CloudError

HELP: Final = """\
  pytorch_ec2.py get_hosts
  pytorch_ec2.py get_hosts --out /tmp/cluster --json

Writes `hosts` (address and alias), `hosts_alias` and `hosts_address`, the master first, with the
addresses inside the cluster, into `clusters/NAME`, which git ignores: `run_pytorch.sh --hostfile
clusters/NAME/hosts_address` takes the last."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="where the files go (default: clusters/NAME)")  # fmt: skip
    parser.add_argument("--partial", action="store_true",
                        help="also where hosts are missing")  # fmt: skip


def run(run: Run) -> int:
    hosts = running_hosts(run, partial=run.options.partial)
    addresses = [host.private_ip or host.id for host in hosts]
    folder = run.options.out or Path("clusters") / run.cluster.name
    paths = write_host_files(folder, addresses)
    run.say(f"master {hosts[0].public_ip or hosts[0].private_ip} ({hosts[0].id})")
    run.say(f"wrote {', '.join(str(path) for path in paths)}: {len(hosts)} hosts")
    run.tell(host_records(hosts))
    return 0


def running_hosts(run: Run, partial: bool = False) -> list[Instance]:
    """Returns the running hosts, the master first.

    Raises:
        CloudError: hosts are missing; with `partial`: the master is missing.
    """
    hosts = instances(run.aws, run.owned, ["running"])
    if not hosts or hosts[0].role != "master":
        raise CloudError(f"cluster {run.cluster.name} has no running master; `launch` starts it")
    if len(hosts) < run.cluster.hosts and not partial:
        raise CloudError(
            f"{len(hosts)} of {run.cluster.hosts} hosts run; `launch` starts the others, "
            "--partial does without"
        )
    return hosts
