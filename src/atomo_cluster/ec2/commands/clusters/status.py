"""`status`: shows the cluster's hosts."""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from io import BytesIO
from pathlib import Path
from typing import Final, TypeVar

from atomo_cluster.ec2.aws.bucket import Bucket
from atomo_cluster.ec2.aws.instance_states import STOPPED_STATES
from atomo_cluster.ec2.aws.inventory import (
    Instance,
    instances,
    namesakes,
    namesakes_text,
    past_fuse_text,
)
from atomo_cluster.ec2.aws.policy import EVERYWHERE
from atomo_cluster.ec2.aws.search import find_resources
from atomo_cluster.ec2.checks.own_hosts import show_own
from atomo_cluster.ec2.commands.clusters.status_page import ClusterStatus, status_html
from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.commands.hosts.delete_images import image_line
from atomo_cluster.ec2.hosts.host_files import alias, host_records
from atomo_cluster.ec2.hosts.host_keys import HostKeys
from atomo_cluster.ec2.hosts.ssh import UNREACHED, host_label
from atomo_cluster.ec2.images.baked import BakedImage, baked
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.invocation.tables import table
from atomo_cluster.ec2.money.ledger import LedgerEntry, read_entries
from atomo_cluster.ec2.money.survey import lost_hosts, tell_place
from atomo_cluster.ec2.places.scheduled_ends import endless_hosts
from atomo_cluster.ec2.settings.terms import MASTER
from atomo_cluster.ec2.supervisor.event_log import Event, parsed
from atomo_cluster.ec2.supervisor.handover import STORY
from atomo_cluster.ec2.supervisor.summary import story_lines, summary
from atomo_cluster.ec2.targets.all_regions import account_hosts, account_regions
from atomo_cluster.ec2.targets.selection import hosts_of, ssh_of
from atomo_cluster.errors import CloudError, ConfigError, LeftBehind
from atomo_cluster.plain_files import READABLE, replace_plain

T = TypeVar("T")
LINES: Final = 400  # a night without capacity has a hundred requests
LOOK_S: Final = 20.0
RIGHTS: Final = f"`iam --for '{EVERYWHERE}'` prints the rights to look into all regions"
HELP: Final = """\
  pytorch_ec2.py status
  pytorch_ec2.py status --name other --json
  pytorch_ec2.py status --all-regions
  pytorch_ec2.py status --html status.html
  pytorch_ec2.py status --hostfile machines --name lab --ssh-username me

Changes nothing. Shows what the supervisor has done, where there is one, and what else carries the
cluster's tags. --html also writes a page for a browser, with costs as the ledger has them. Where
the regions of the settings have no hosts, it looks into those that the ledger
of this machine names; hosts of the ledger that it cannot see may run, and it ends with 10.
--all-regions shows the hosts of all your clusters wherever they are. Where hosts of a cluster of
this name live that belong to another owner, it ends with 14 and says whose they are; so it does
where a host is alive past its fuse. Hosts of --hostfile are asked whether they answer and train;
with 11 one of them does not answer."""


def arguments(parser: ArgumentParser) -> None:
    add_hostfile(parser)
    parser.add_argument("--all-regions", action="store_true",
                        help="the hosts of this name and all of yours, in every region of the "
                        "account")  # fmt: skip
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="also write a page: hosts, costs, interruptions, jobs")  # fmt: skip


def run(run: Run) -> int:
    """Shows the hosts and all other resources."""
    if run.options.html and (run.options.hostfile or run.options.all_regions):
        raise ConfigError("--html is for one cluster on EC2; leave out --hostfile, --all-regions")
    if run.options.hostfile:
        return show_own(run)
    if run.options.all_regions:
        return show_account(run)
    others = tell_place(run, run.looked_at())
    hosts = instances(run.aws, run.owned)
    unsaid = list[str]()
    hosts += said(unsaid, lambda: lost_hosts(run), list[Instance]())
    show_cluster(run, hosts)
    result = find_resources(run.aws, run.owned.filters(), run.cluster.makes_roles)
    endless = said(unsaid, lambda: endless_hosts(run, hosts), None)
    story = said(unsaid, lambda: told(run, hosts), list[Event]())
    for line in story_lines(story, datetime.now(timezone.utc)):
        run.say(line)
    resources = [resource for resource in result.things if resource.kind != "instance"]
    for resource in resources:
        run.say(f"{resource.kind} {resource.id} {resource.state}".rstrip())
    made = said(unsaid, lambda: baked(run.aws, run.owned), list[BakedImage]())
    for image in made:
        run.say(f"{image_line(image)}; `delete_images` deletes it")
    foreign = said(unsaid, lambda: namesakes(run.aws, run.owned), dict[str, int]())
    unsaid += [*result.errors, *(group.text for group in others.unseen)]
    run.tell({"hosts": host_records(hosts), "wanted": run.cluster.hosts, "place": asdict(run.place),
              "others": [vars(resource) for resource in resources],
              "images": [asdict(image) for image in made], "unsaid": unsaid,
              "without_end_by_aws": endless, "namesakes": foreign,
              "story": [asdict(event) for event in story],
              "supervisor": asdict(summary(story)) if story else None})  # fmt: skip
    if run.options.html:
        write_page(run, hosts, story, unsaid)
    check_fuses(run, hosts)
    if foreign:
        raise LeftBehind(
            f"{namesakes_text(run.owned, foreign)}; see them with --owner {min(foreign)}"
        )
    if unsaid:  # the hosts are shown by now
        raise CloudError(f"AWS does not say all: {'; '.join(dict.fromkeys(unsaid))}")
    return 0


def write_page(
    run: Run, hosts: Sequence[Instance], story: Sequence[Event], unsaid: list[str]
) -> None:
    """Writes the page of `--html`.

    Raises:
        ConfigError: the file cannot be written.
    """
    lives = said(unsaid, lambda: recorded_lives(run), list[LedgerEntry]())
    status = ClusterStatus(
        run.cluster.name, run.owned.owner, run.aws.region, hosts, run.cluster.hosts, lives, story,
        list(dict.fromkeys(unsaid)), datetime.now(timezone.utc),
    )  # fmt: skip
    path: Path = run.options.html
    try:
        replace_plain(path, status_html(status), READABLE)
    except OSError as error:
        raise ConfigError(f"--html {path}: {error.strerror}") from error
    run.say(f"wrote {path}")


def recorded_lives(run: Run) -> list[LedgerEntry]:
    """Returns the lives of the cluster's hosts in the ledger, with the prices of the last look."""
    return [*read_entries(run.cluster, run.owned.owner, run.place).values()]


def check_fuses(run: Run, hosts: list[Instance]) -> None:
    """Raises LeftBehind if hosts outlive their fuses."""
    if late := [host for host in hosts if host.past_fuse]:
        run.tell({"past_fuse": [host.id for host in late]})
        raise LeftBehind("; ".join(map(past_fuse_text, late)))


def show_account(run: Run) -> int:
    """Shows the hosts of the cluster's name and of the owner in all regions of the account.

    Raises:
        CloudError: a region does not answer, or the ledger has hosts elsewhere; the hosts of the
            others are shown before.
    """
    try:
        regions = account_regions(run)
    except CloudError as error:
        raise CloudError(f"{error}; {RIGHTS}", error.code) from error
    others = tell_place(run, [run.at(run.given.moved(region)) for region in regions])
    hosts, errors = account_hosts(run, regions)
    for region, listed in hosts.items():
        for owner in dict.fromkeys(host.owner for host in listed):
            show_hosts(run, [host for host in listed if host.owner == owner], owner)
        run.say(f"{len(listed)} hosts in {region}")
    count = sum(map(len, hosts.values()))
    run.say(f"{count} hosts in the {len(regions) - len(errors)} regions that answer")
    unsaid = [*(f"{region}: {error}" for region, error in errors.items()),
              *(group.text for group in others.unseen)]  # fmt: skip
    run.tell({"regions": {region: host_records(listed) for region, listed in hosts.items()},
              "unsaid": unsaid, "place": asdict(run.place)})  # fmt: skip
    if unsaid:
        raise CloudError(f"AWS does not say all: {'; '.join(unsaid)}; {RIGHTS}")
    return 0


def show_cluster(run: Run, hosts: list[Instance]) -> None:
    """Shows the hosts and the number of missing ones."""
    if hosts:
        show_hosts(run, hosts)
    else:
        run.say(f"{run.cluster.name} (owner {run.owned.owner}) has no hosts in {run.aws.region}")
    missing = run.cluster.hosts - len(hosts)
    if hosts and missing > 0:
        run.say(f"{missing} of {run.cluster.hosts} hosts are missing; `launch` starts them")


def said(unsaid: list[str], ask: Callable[[], T], nothing: T) -> T:
    """Returns the answer of AWS; after an error returns `nothing` and adds it to `unsaid`."""
    try:
        return ask()
    except CloudError as error:
        unsaid.append(str(error))
        return nothing


def told(run: Run, hosts: list[Instance]) -> list[Event]:
    """Returns the events of the supervisor; empty if there is none or the master is unreachable."""
    if not run.cluster.supervise:
        return []
    if not hosts and run.cluster.results:
        return stored(run)
    if not hosts or hosts[0].state != "running":
        return []
    master, ssh = hosts_of(run, hosts[:1])[0], ssh_of(run)
    if not HostKeys(ssh, lambda host: set()).pinned(master)[0]:
        return []  # it was never set up from here
    answer = ssh.run(master, f"tail -n {LINES} {STORY}", timeout_s=ssh.connect_timeout_s + LOOK_S)
    if answer.code == UNREACHED:
        run.say(
            f"the supervisor's events are not shown: {host_label(master)}: {answer.complaint()}"
        )
    return parsed(answer.out)


def stored(run: Run) -> list[Event]:
    """Returns the events that the results of an ended cluster contain."""
    bucket, name, text = Bucket(run.aws, run.cluster.results), Path(STORY).name, BytesIO()
    if (stored_file := bucket.listed().get(name)) is not None:
        bucket.read(name, stored_file.mark, text, 0)
    return parsed(text.getvalue().decode(errors="replace"))[-LINES:]


def show_hosts(run: Run, hosts: list[Instance], owner: str = "") -> None:
    """Shows hosts of one owner, by default of the cluster's, one table per cluster."""
    for name in dict.fromkeys(host.cluster for host in hosts):
        cluster_hosts = [host for host in hosts if host.cluster == name]
        zones = " ".join(sorted({host.zone for host in cluster_hosts}))
        shown = table(f"{name}, owner {owner or run.owned.owner}, {zones}", COLUMNS)
        for number, host in enumerate(cluster_hosts):
            shown.add_row(*cells(number, host))
        run.show(shown)


COLUMNS: Final = ("host", "id, type", "state, fuse", "address, inside")


def cells(number: int, host: Instance) -> list[str]:
    """Returns a row of two lines."""
    pairs = [
        (MASTER, "") if host.role == MASTER else (alias(number), host.role),
        (host.id, host.type + (" spot" if host.spot else "")),
        (host.state, left(host)),
        (host.public_ip or "-", host.private_ip or "-"),
    ]
    return [f"{above}\n{below}" for above, below in pairs]


def left(host: Instance) -> str:
    """Formats the time until the fuse, which pauses while a host is stopped."""
    if not host.fuse_known:
        return "unknown"
    if host.state in STOPPED_STATES:
        return f"keeps {host.max_hours:.1f} h"
    minutes = int((host.fuse - datetime.now(timezone.utc)).total_seconds() // 60)
    if minutes < 0:
        return "PAST ITS FUSE" if host.past_fuse else "ends now"
    return f"{minutes // 60} h {minutes % 60} min"
