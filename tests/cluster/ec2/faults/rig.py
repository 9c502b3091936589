"""The setup of the fault tests: an account, commands, and hosts that accept every command."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from cluster.ec2.faults.neighbours import Neighbours
from cluster.ec2.faults.supervised import night
from cluster.ec2.support.clients import Remembering
from cluster.ec2.support.cloud import Cloud, Moto, write_cluster
from cluster.ec2.support.iam_gate import Gate
from cluster.ec2.support.lab import banner
from cluster.ec2.support.sshd import make_key

from atomo_cluster.ec2.aws.tags import HOURS
from atomo_cluster.errors import INTERRUPTED

__all__ = [
    "COMMANDS",
    "MAX_USD",
    "Ec2",
    "Result",
    "Tried",
    "clients_of",
    "most_usd",
    "patches",
    "ready",
    "rig",
    "running",
]

UP: Final = (("launch", "--yes"),)
SPOT: Final = (("launch", "--yes", "--method", "spot"),)
KEPT: Final = ("--supervise", "yes", "--results", "s3://results-of-tests/one")
SUPERVISED: Final = (("launch", "--yes", *KEPT),)
ASLEEP: Final = (*UP, ("stop_hosts", "--yes"))
BAKED: Final = (*UP, ("bake", "--yes"))
REGIONS: Final = ("--regions", "us-east-1,us-west-2")
IN_REGIONS: Final = (("launch", "--yes", *REGIONS),)
SSM: Final = ("--connect", "ssm")
IN_SESSIONS: Final = (("launch", "--yes", *SSM),)
FULL: Final = "us-east-1"  # so that the cluster is in the other region
HOSTS, IMAGES = ("i-", "sir-", "vol-"), ("ami-", "snap-")
PRICES: Final = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
HOUR: Final = 0.096 + 100 * 0.08 / 730 + 0.005  # of a host, USD
MAX_USD: Final = 3 * 9.2 * HOUR  # three hosts until fuses of nine hours, and not four of eight


@dataclass(frozen=True)
class Tried:
    """A command, and the commands before it. For a command that changes something, each fault gets
    the same account again.
    """

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    changes: bool = False
    ends: tuple[str, ...] = ()  # prefixes of the resources that the command ends
    full: str = ""  # a region without capacity


COMMANDS: Final[dict[str, Tried]] = {
    "iam --check": Tried(("iam", "--check")),
    "cheapest": Tried(("cheapest", "--vcpus", "64", "--limit", "3")),
    "plan": Tried(("plan",)),
    "validate": Tried(("validate",)),
    "validate (EFS)": Tried(("validate", "--nfs-ip-address", "10.1.2.3")),
    "launch --dry-run": Tried(("launch", "--dry-run")),
    "launch": Tried(("launch", "--yes"), changes=True),
    "launch (spot)": Tried(("launch", "--yes", "--method", "spot"), changes=True),
    "launch (aws_end: yes)": Tried(("launch", "--yes", "--aws-end", "yes"), changes=True),
    "launch (supervised)": Tried(
        ("launch", "--yes", *KEPT, "--placement-group", "yes"), changes=True
    ),
    "get_hosts": Tried(("get_hosts",), UP),
    "status": Tried(("status",), UP),
    "status (results on S3)": Tried(("status", *KEPT)),
    "cost": Tried(("cost",), UP),
    "extend": Tried(("extend", "8.9", "--yes"), UP, changes=True),
    "resize (more)": Tried(
        ("resize", "3", "--yes", "--max-usd", f"{MAX_USD + 8.2 * HOUR}"), UP, changes=True
    ),
    "resize (fewer)": Tried(("resize", "1", "--yes"), UP, changes=True),
    "stop_hosts": Tried(("stop_hosts", "--yes"), UP, changes=True),
    "start_hosts": Tried(("start_hosts", "--yes"), ASLEEP, changes=True),
    "bake": Tried(("bake", "--yes"), UP, changes=True),
    "delete_images": Tried(("delete_images", "--yes"), BAKED, changes=True, ends=IMAGES),
    "list_running_instances": Tried(("list_running_instances",), UP),
    "list_idle_instances": Tried(("list_idle_instances",), UP),
    "run_command": Tried(("run_command", "all", "true"), UP),
    "kill_python": Tried(("kill_python", "--wait", "0"), UP),
    "kill_all_python": Tried(("kill_all_python", "--wait", "0", "--yes"), UP),
    "setup_nfs": Tried(("setup_nfs", "--nfs-ip-address", "10.1.2.3"), UP),
    "bootstrap": Tried(("bootstrap", "--wait", "0"), UP),
    "train": Tried(("train", "--", "--epochs", "2"), UP),
    "train (supervised)": Tried(("train", *KEPT), SUPERVISED),
    "jobs": Tried(("jobs",), UP),
    "logs": Tried(("logs", "1"), UP),
    "attach": Tried(("attach", "1"), UP),
    "stop": Tried(("stop", "1"), UP),
    "fetch": Tried(("fetch",), UP),
    "fetch (S3)": Tried(("fetch", *KEPT)),
    "upload": Tried(("upload", "cluster.yaml", "data"), UP),
    "ssh": Tried(("ssh", "--", "true"), UP),
    "clean_launch_and_run": Tried(
        ("clean_launch_and_run", "--yes", "--wait", "0"), UP, changes=True, ends=HOSTS
    ),
    "clean_launch_and_run --then-shutdown": Tried(
        ("clean_launch_and_run", "--yes", "--wait", "0", "--then-shutdown"),
        changes=True, ends=HOSTS,
    ),
    "supervise": Tried(("supervise",), (("launch", "--yes"),), changes=True, ends=HOSTS),
    "shutdown": Tried(("shutdown", "--yes"), UP, changes=True, ends=HOSTS),
    "shutdown (spot)": Tried(("shutdown", "--yes"), SPOT, changes=True, ends=HOSTS),
    "shutdown (supervised)": Tried(("shutdown", "--yes"), SUPERVISED, changes=True, ends=HOSTS),
    "launch (regions)": Tried(("launch", "--yes", *REGIONS), changes=True, full=FULL),
    "status (regions)": Tried(("status", *REGIONS), IN_REGIONS, full=FULL),
    "cost (regions)": Tried(("cost", *REGIONS), IN_REGIONS, full=FULL),
    "train (regions)": Tried(("train", *REGIONS, "--", "--epochs", "2"), IN_REGIONS, full=FULL),
    "shutdown (regions)": Tried(
        ("shutdown", "--yes", *REGIONS), IN_REGIONS, changes=True, ends=HOSTS, full=FULL
    ),
    "extend (regions)": Tried(
        ("extend", "8.9", "--yes", *REGIONS), IN_REGIONS, changes=True, full=FULL
    ),
    "resize (regions)": Tried(
        ("resize", "1", "--yes", *REGIONS), IN_REGIONS, changes=True, full=FULL
    ),
    "stop_hosts (regions)": Tried(
        ("stop_hosts", "--yes", *REGIONS), IN_REGIONS, changes=True, full=FULL
    ),
    "start_hosts (regions)": Tried(
        ("start_hosts", "--yes", *REGIONS),
        (*IN_REGIONS, ("stop_hosts", "--yes", *REGIONS)), changes=True, full=FULL,
    ),
    "launch (ssm)": Tried(("launch", "--yes", *SSM), changes=True),
    "bootstrap (ssm)": Tried(("bootstrap", "--wait", "0", *SSM), IN_SESSIONS),
    "extend (ssm)": Tried(("extend", "8.9", "--yes", *SSM), IN_SESSIONS, changes=True),
    "resize (ssm)": Tried(("resize", "1", "--yes", *SSM), IN_SESSIONS, changes=True),
    "stop_hosts (ssm)": Tried(("stop_hosts", "--yes", *SSM), IN_SESSIONS, changes=True),
    "start_hosts (ssm)": Tried(
        ("start_hosts", "--yes", *SSM), (*IN_SESSIONS, ("stop_hosts", "--yes", *SSM)), changes=True
    ),
    "train (ssm)": Tried(("train", *SSM, "--", "--epochs", "2"), IN_SESSIONS),
    "shutdown (ssm)": Tried(("shutdown", "--yes", *SSM), IN_SESSIONS, changes=True, ends=HOSTS),
    "supervise (ssm)": Tried(("supervise", *SSM), IN_SESSIONS, changes=True, ends=HOSTS),
}  # fmt: skip

# A host's answer to a command over ssh: $1 is the host, $2 the command.
HOST: Final = """
case $2 in
  *"sudo -n bash -s -- "[0-9]*) echo "${2##* }" >"$HOME/fuse-$1" ;;
  *"sudo -n bash -s -- pause") echo 18000 ;;
  *"job list"*) printf '1\\tdone\\t0\\t10\\t11\\t19\\truns/job-1\\t--epochs 2\\n' ;;
  *"job start"*) printf '2\\truns/job-2\\n' ;;
  *"remote_script.sh key"*) echo KEY ;;
  *"date +%s.%N && "*) date +%s.%N; printf '0 1.5 train/model\\0' ;;
esac
"""


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


Ec2 = Callable[..., Result]


def prepare(cloud: Cloud, folder: Path) -> None:
    """Prepares an account and a folder in which every command finds its inputs."""
    cloud.reset()
    cloud.prices, cloud.quotas, cloud.denied = PRICES, {}, set()
    if not (folder / "host.sh").exists():
        make_key(folder / "host_key")
        (folder / "host.sh").write_text(HOST)
        write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"),
                      max_usd=MAX_USD, master_method="on-demand")  # fmt: skip
    cloud.console = banner((folder / "host_key.pub").read_text())
    for left in folder.glob("fuse-*"):
        left.unlink()
    shutil.rmtree(folder / "results", ignore_errors=True)  # or a fetch may find all there


def ready(ec2: Ec2, cloud: Cloud, folder: Path, command: str) -> Neighbours:
    """Prepares the account and the folder for a command; returns the clusters of other places."""
    prepare(cloud, folder)
    neighbours = Neighbours.launch(cloud)
    if full := COMMANDS[command].full:
        cloud.full.add(full)
    for words in COMMANDS[command].before:
        done = ec2(*words)
        assert done.code == 0, f"{words}: {done.code} {done.out[-500:]}{done.err}"
    store(cloud, COMMANDS[command].words)
    cloud.calls.clear()
    return neighbours


def store(cloud: Cloud, words: tuple[str, ...]) -> None:
    """The bucket that a command names, with a result and a story."""
    if "--results" in words:
        client = cloud.moto.client("s3")
        client.create_bucket(Bucket="results-of-tests")
        for name in ("model", "story.jsonl"):
            client.put_object(Bucket="results-of-tests", Key=f"one/{name}", Body=b"{}\n")


def most_usd(cloud: Cloud, folder: Path) -> float:
    """Returns the cost of the running hosts until their own fuses end them."""
    return sum(HOUR * fuse_h(client, folder, instance)
               for client in clients_of(cloud)
               for instance in running(client))  # fmt: skip


def clients_of(cloud: Cloud) -> list[Any]:
    """Returns the clients of the regions in which commands of the table launch."""
    return [cloud.moto.client(), *([cloud.moto.region("us-west-2")] if cloud.full else [])]


def running(client: Any) -> list[dict[str, Any]]:
    """Returns the instances that run."""
    wanted = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    batches = client.describe_instances(Filters=wanted)["Reservations"]
    return [instance for batch in batches for instance in batch["Instances"]]


def fuse_h(client: Any, folder: Path, instance: dict[str, Any]) -> float:
    """Returns the hours of a host's fuse: the last value that was set, or that of its
    first boot.
    """
    moved = folder / f"fuse-{instance['InstanceId']}"
    if moved.exists():
        return (float(moved.read_text()) - instance["LaunchTime"].timestamp()) / 3600
    about = {"InstanceId": instance["InstanceId"], "Attribute": "userData"}
    told = client.describe_instance_attribute(**about)["UserData"].get("Value", "")
    script = base64.b64decode(told).decode()
    if found := re.search(r"shutdown -h \+(\d+)", script):
        return int(found[1]) / 60
    tags = {one["Key"]: one["Value"] for one in instance["Tags"]}  # moto's fleets have no script
    return float(tags[HOURS])


@contextmanager
def patches(folder: Path, gate: Gate | None = None) -> Iterator[None]:
    """Simulates hosts, makes clients of AWS once, and removes waits.

    A gate lets calls and sessions through that its policies allow.
    """
    clients = Remembering(gate.watch) if gate else Remembering()

    def words(ssh: Any, host: Any, *command: str, terminal: bool = False) -> list[str]:
        if gate and ssh.proxy and not gate.may_connect("us-east-1", host.id):
            return ["bash", "-c", "echo AccessDeniedException: ssm:StartSession >&2; exit 255"]
        return ["bash", str(folder / "host.sh"), host.id, *command]

    def scan(name: str, port: str) -> set[str]:
        return {" ".join((folder / "host_key.pub").read_text().split()[:2])}

    with ExitStack() as stack:
        for name, value in {
            "atomo_cluster.ec2.hosts.ssh.Ssh.words": words,
            "atomo_cluster.ec2.aws.client.session": lambda: clients,
            "atomo_cluster.ec2.hosts.host_keys.scan": scan,
            "atomo_cluster.ec2.hosts.host_keys.resolve_address": lambda *_: ("", ""),
            "atomo_cluster.ec2.aws.deletion.BETWEEN_S": 0.0,
            "atomo_cluster.ec2.launch.launching.SETTLE_S": 0.0,
            "atomo_cluster.ec2.hosts.setup.BETWEEN_S": 0.0,
            "atomo_cluster.ec2.places.adoption.SETTLE_S": 0.0,
            "atomo_cluster.ec2.places.adoption.BETWEEN_S": 0.0,
            "botocore.endpoint.time": Clock(),
            "atomo_cluster.ec2.commands.hosts.bootstrap.pack_checkout": lambda root: b"",
            "atomo_cluster.ec2.targets.selection.require_programs": lambda: None,
            "atomo_cluster.ec2.checks.network.require_programs": lambda: None,
        }.items():
            stack.enter_context(patch(name, value))
        yield


class Clock:
    """Botocore's clock, between two attempts at a call."""

    def sleep(self, seconds_s: float) -> None:
        """Goes on at once."""


@contextmanager
def rig(folder: Path) -> Iterator[tuple[Ec2, Cloud]]:
    """Moto's server with the proxy, and commands that run against it in this process."""
    from atomo_cluster.ec2.cli import main

    server = Moto()
    cloud = Cloud(server)
    names = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
    around = dict.fromkeys(names, "/nowhere") | {
        "AWS_ENDPOINT_URL": cloud.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
    }

    def ec2(*words: str) -> Result:
        if words[0] == "supervise":
            return Result(*night(cloud, folder, words[1:]), "")
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(words))
        if code == INTERRUPTED:  # which was meant for all of this
            raise KeyboardInterrupt
        return Result(code, out.getvalue(), err.getvalue())

    with ExitStack() as stack:
        stack.callback(server.stop)
        stack.callback(cloud.stop)
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        stack.enter_context(patch.dict(os.environ, around, clear=True))
        stack.enter_context(patches(folder))
        yield ec2, cloud
