"""`bake`: makes an image with the environment in it."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.hosts.fuses import keep_fuse_script
from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh, on_all_hosts
from atomo_cluster.ec2.images.baked import BakedImage, baked, create
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.control import check_idle
from atomo_cluster.ec2.money.prices import format_usd, snapshot_month
from atomo_cluster.ec2.places.instance_types import InstanceType, instance_types
from atomo_cluster.ec2.settings.terms import MASTER
from atomo_cluster.ec2.targets.each_host import finish
from atomo_cluster.ec2.targets.selection import cluster_hosts, host_keys, ssh_of
from atomo_cluster.errors import CloudError, LeftBehind

HELP: Final = """\
  pytorch_ec2.py bake
  pytorch_ec2.py launch --image-id baked

Makes an image (AMI) of a host that `bootstrap` has set up, with its environment, checkout and data
sets; a second one where some hosts have GPUs, or another processor. Workers are taken rather than
the master. The cluster's keys are taken away from the host before, and EC2 restarts it:
`bootstrap` then makes it one of the cluster again. `launch` with image_id: baked uses the newest
that suits, and its `bootstrap` has nothing to install. Images cost, and outlive the cluster:
`status` and `cost` show them, `delete_images` deletes them with their snapshots."""
IMAGE_S: Final = 3600
SCRUB_S: Final = 120.0
AFTERWARDS: Final = "`bootstrap` makes hosts that were to become images of the cluster again"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(hostfile=None)  # hosts of one's own are not EC2's


def run(run: Run) -> int:
    hosts = cluster_hosts(run)
    chosen = one_of_each(run, instances(run.aws, run.owned, ["running"]))
    show(run, chosen)
    check_idle(run, hosts[0])
    run.confirm()
    older = baked(run.aws, run.owned)
    ids = {baked_host.id for baked_host, _ in chosen}
    ssh, keys = ssh_of(run), host_keys(run, ssh_of(run))
    for host in (hosts_to_bake := [host for host in hosts if host.id in ids]):
        keys.pin(host)
    finish(scrub(ssh, hosts_to_bake, run.cluster.remote_dir), shown=False)
    made = make(run, chosen)
    wait(run, made)
    report(run, made, older)
    return 0


def one_of_each(run: Run, hosts: Sequence[Instance]) -> list[tuple[Instance, InstanceType]]:
    """Picks one host per kind of image: processor architecture, with or without GPUs.

    Prefers workers to the master, which has jobs and results, and later hosts to earlier ones.
    """
    types_by_name = instance_types(run.aws, [host.type for host in hosts])
    ordered = sorted(hosts, key=lambda host: host.role != MASTER)  # the last of a kind is taken
    kinds = {
        (types_by_name[host.type].architecture, types_by_name[host.type].gpus > 0): host
        for host in ordered
    }
    return [(host, types_by_name[host.type]) for host in kinds.values()]


def scrub(ssh: Ssh, hosts: Sequence[Host], checkout: str) -> list[Answer]:
    """Removes from hosts the data that other hosts must not have; the fuses of the hosts stay."""
    fuse, script = keep_fuse_script(), (SCRIPTS / "scrub.sh").read_bytes()

    def one(host: Host) -> Answer:
        answer = ssh.run(host, "sudo -n bash -s", fuse, SCRUB_S)
        return answer if answer.code else ssh.run(host, f"bash -s -- {checkout}", script, SCRUB_S)

    return on_all_hosts(hosts, one)


def show(run: Run, chosen: Sequence[tuple[Instance, InstanceType]]) -> None:
    """Reports the hosts to bake, and the cost of their images."""
    month_per_gb = snapshot_month(run.aws)
    for host, machine in chosen:
        kind = f"{machine.architecture}, {'GPUs' if machine.gpus else 'no GPUs'}"
        run.say(f"{host.id} {host.type} {host.role} ({kind}): is restarted, and becomes an image")
    bound = None if month_per_gb is None else month_per_gb * run.cluster.volume_gb
    cost = "unknown" if bound is None else f"at most {format_usd(bound)}"
    run.say(f"an image costs {cost} a month, until `delete_images`")


def make(run: Run, chosen: Sequence[tuple[Instance, InstanceType]]) -> list[str]:
    """Makes an image of each host and reports each image as soon as it exists.

    Raises:
        CloudError: EC2 refused, and there is no image.
        LeftBehind: some images exist or may exist.
    """
    made: list[str] = []
    for host, machine in chosen:
        try:
            made.append(create(run.aws, run.owned, host.id, machine.gpus > 0))
        except (CloudError, LeftBehind) as error:
            text = f"{host.id}: {error}; {AFTERWARDS}"
            if made:
                text += f". {', '.join(made)} may still come, and cost: `delete_images` deletes"
            raise (LeftBehind if made else type(error))(text) from error
        run.say(f"making {made[-1]} of {host.id} ...")
    return made


def wait(run: Run, ids: Sequence[str]) -> None:
    """Waits until the images are available.

    Raises:
        LeftBehind: the images are not available and may cost.
    """
    try:
        run.aws.wait("image_available", IMAGE_S, ImageIds=list(ids))
    except CloudError as error:
        raise LeftBehind(
            f"{error}; {', '.join(ids)} may still come, and costs: `status` shows it, "
            f"`delete_images` deletes; {AFTERWARDS}"
        ) from error


def report(run: Run, made: Sequence[str], older: Sequence[BakedImage]) -> None:
    """Reports the new and the older images, and the next step."""
    for id in made:
        run.say(f"{id} is available; `launch --image-id baked` takes it")
    if older:
        ids = " ".join(image.id for image in older)
        run.say(f"older images, which cost as well: `delete_images {ids}`")
    run.say(
        "next: `pytorch_ec2.py bootstrap`, which makes the restarted hosts of the cluster again"
    )
    run.tell({"images": list(made), "older": [asdict(image) for image in older]})
