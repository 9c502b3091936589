"""The options of every command, with examples."""

import argparse
import os
from pathlib import Path

__all__ = ["DEFAULT_NAME", "clusters_folder", "make_parser"]

DEFAULT_NAME = "virtual"

DESCRIPTION = """\
A cluster on this machine: hosts with their own addresses, host names, sshds and slow links.

  python3 tools/virtual_cluster.py up --hosts 4 --rate 100mbit
  python3 tools/virtual_cluster.py exec h1 \\
      bash run_pytorch.sh --n 4 --hostfile clusters/virtual/hosts_address
  python3 tools/virtual_cluster.py down

Needs root or unprivileged user namespaces; `check` lists missing programs and rights."""
EXIT_CODES = """\
exit codes:
  0    it is done
  2    bad usage, or a program or a privilege is missing; nothing was done
  15   it was tried and failed; nothing half-made is left
  130  it was interrupted
`exec` ends with the code of its command (128 + N if signal N ended it)."""
UP = """\
Brings hosts h1, h2, ... up. Each end of each link lets RATE through in each direction.

  virtual_cluster.py up --hosts 4 --rate 1gbit
  virtual_cluster.py up --hosts 4 --rate 100mbit --latency 10ms --name wan

With --own-homes files in the home folder stay on that host, and are gone with it;
everything else on this machine is shared, the folder of clusters too.

A delay needs a kernel with netem. Where it has none, --latency is left out; that is said
aloud, and `status --json` has latency_ms null. Several clusters may be up together, each with its
own --name; they do not see each other, nor does this machine's network see them."""
STATUS = """\
Says of each host whether it is up, partitioned or killed, its limit, the bytes that crossed
its link, and its processes.

  virtual_cluster.py status
  virtual_cluster.py status --json | python3 -m json.tool"""
EXEC = """\
Runs a command on a host, in this folder and with this environment. Every host sees all files
of this machine. The command ends with `exec`, which passes signals on to it.

  virtual_cluster.py exec h1 bash run_pytorch.sh --n 4 --hostfile clusters/virtual/hosts_address
  virtual_cluster.py exec h4 bash evaluate_pytorch.sh --model-dir clusters/virtual/shared/x
  virtual_cluster.py exec h2 ssh h3 hostname"""
PARTITION = """\
Pulls the cable of a host: packets are lost in both directions, without a notice.

  virtual_cluster.py partition h2
  virtual_cluster.py heal h2"""
HEAL = """\
Puts the cable back.

  virtual_cluster.py heal h2"""
THROTTLE = """\
Changes the limit of one host's link, in both directions, immediately.

  virtual_cluster.py throttle h3 10mbit"""
KILL = """\
Cuts the power of a host: its processes end, and the other hosts get no notice.

  virtual_cluster.py kill h2"""
DOWN = """\
Ends all that runs on the hosts, and removes the hosts, their links and the cluster's files, also
after a crash, and however often it is called. Your files in the shared folder stay.

  virtual_cluster.py down
  virtual_cluster.py down --name wan --purge     the shared folder too"""
CHECK = """\
Checks if this machine can hold a cluster, and lists obstacles.

  virtual_cluster.py check"""


def make_parser(clusters: Path) -> argparse.ArgumentParser:
    """Returns the parser; `clusters` is the default folder of clusters."""
    selection = cluster_selection(clusters)
    parser = argparse.ArgumentParser(
        prog="virtual_cluster.py", description=DESCRIPTION, epilog=EXIT_CODES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(word: str, text: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            word, description=text, epilog=EXIT_CODES, help=summary, parents=[selection],
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip

    add_up_options(command("up", UP, "bring a cluster up"))
    as_json(command("status", STATUS, "show hosts and links"))
    execute = command("exec", EXEC, "run a command on a host")
    execute.add_argument("host", metavar="HOST")
    execute.add_argument("words", metavar="CMD", nargs=argparse.REMAINDER)
    on_host(command("partition", PARTITION, "pull the cable of a host"))
    on_host(command("heal", HEAL, "put the cable back"))
    throttle = command("throttle", THROTTLE, "change the limit of a host's link")
    on_host(throttle)
    throttle.add_argument("rate", metavar="RATE")
    on_host(command("kill", KILL, "cut the power of a host"))
    down = command("down", DOWN, "take a cluster away")
    down.add_argument("--purge", action="store_true", help="the shared folder as well")
    as_json(down)
    as_json(command("check", CHECK, "check if a cluster can run here"))
    return parser


def cluster_selection(clusters: Path) -> argparse.ArgumentParser:
    """Returns the parser of the options that select a cluster, which all commands share."""
    selection = argparse.ArgumentParser(add_help=False)
    selection.add_argument(
        "--name", default=DEFAULT_NAME, type=name, help="of the cluster: %(default)s"
    )
    default_folder = str(clusters_folder(clusters))
    selection.add_argument(
        "--clusters", metavar="FOLDER", default=default_folder,
        help="has a folder for each cluster: $ATOMO_CLUSTERS, or %(default)s",
    )  # fmt: skip
    return selection


def add_up_options(up: argparse.ArgumentParser) -> None:
    """Adds the options of `up`."""
    up.add_argument("--hosts", type=int, default=4, help="how many: %(default)s")
    up.add_argument("--rate", default="1gbit", help="of each link: %(default)s")
    up.add_argument("--latency", default="", help="one way between two hosts, e.g. 10ms; none")
    up.add_argument("--network", default="10.77.0.0/24", help="the addresses: %(default)s")
    up.add_argument(
        "--mtu", type=int, default=9000, help="bytes of a packet: %(default)s, as on EC2"
    )
    up.add_argument(
        "--own-homes", action="store_true",
        help="a home folder for each host, where `pytorch_ec2.py bootstrap` can write",
    )  # fmt: skip
    as_json(up)


def clusters_folder(clusters: Path) -> Path:
    """Returns the folder of clusters: $ATOMO_CLUSTERS, or `clusters`."""
    return Path(os.environ.get("ATOMO_CLUSTERS") or clusters)


def as_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def on_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help="its name or address, e.g. h2")


def name(text: str) -> str:
    """Checks the name of a cluster, which is also the name of a folder."""
    if not text.replace("-", "").replace("_", "").isalnum() or not text.isascii():
        raise argparse.ArgumentTypeError(f"{text!r}: letters, digits, - and _")
    return text
