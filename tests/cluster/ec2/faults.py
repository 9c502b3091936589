"""Every call to AWS fails once in every command: what the command then says, and what still runs.

    python tests/cluster/ec2/faults.py                             # of all commands: many minutes
    python tests/cluster/ec2/faults.py launch shutdown --write     # puts these into the page

A fault is one of two: `refused`, where AWS does nothing, and `lost`, where AWS does what was asked
and the answer never arrives. What only looks is refused; what changes something is refused and
lost. Each occurrence of a call in a command is a case of its own.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from cluster.ec2.cloud import Cloud, Forward, Moto, Reply, everything, refusal, write_cluster
from cluster.ec2.lab import banner
from cluster.ec2.sshd import closed_port, make_key

__all__ = ["CHANGES", "COMMANDS", "Case", "Outcome", "in_page", "outcome", "ready"]

PAGE: Final = Path(__file__).parents[3] / "docs" / "cluster-ec2.md"
BEGIN, END = "<!-- calls and outcomes -->\n", "<!-- end of calls and outcomes -->\n"
UP: Final = (("launch", "--yes"),)
# What was done before, and the command, by its name. Hosts let nobody in by ssh.
COMMANDS: Final[dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]]] = {
    "validate": ((), ("validate",)),
    "plan": ((), ("plan",)),
    "cheapest": ((), ("cheapest", "--vcpus", "64", "--limit", "3")),
    "iam --check": ((), ("iam", "--check")),
    "launch": ((), ("launch", "--yes")),
    "launch (spot)": ((), ("launch", "--yes", "--method", "spot")),
    "launch --dry-run": ((), ("launch", "--dry-run")),
    "status": (UP, ("status",)),
    "get_hosts": (UP, ("get_hosts",)),
    "cost": (UP, ("cost",)),
    "list_running_instances": (UP, ("list_running_instances",)),
    "list_idle_instances": (UP, ("list_idle_instances",)),
    "extend": (UP, ("extend", "9", "--yes")),
    "bootstrap": (UP, ("bootstrap", "--wait", "0")),
    "run_command": (UP, ("run_command", "all", "true")),
    "train": (UP, ("train", "--detach")),
    "kill_python": (UP, ("kill_python", "--wait", "0")),
    "resize (more)": (UP, ("resize", "3", "--yes")),
    "resize (fewer)": (UP, ("resize", "1", "--yes")),
    "shutdown": (UP, ("shutdown", "--yes")),
    "clean_launch_and_run": (
        UP, ("clean_launch_and_run", "--yes", "--wait", "0", "--then-shutdown"),
    ),
}  # fmt: skip
# After the others nothing has to be made anew.
CHANGES: Final = ("launch", "launch (spot)", "resize (more)", "resize (fewer)", "shutdown",
                  "clean_launch_and_run")  # fmt: skip
ENDS: Final = ("shutdown", "clean_launch_and_run")
LOOKS: Final = ("Describe", "Get", "List", "Simulate")
# Codes that botocore does not ask again for: the fault reaches the command.
REFUSED: Final = refusal("UnauthorizedOperation", "You are not authorized to do this")
LOST: Final = refusal("IncompleteSignature", "the answer was lost on the way")


@dataclass(frozen=True)
class Case:
    """One fault in one command."""

    command: str
    call: str
    occurrence: int  # the first is 1
    kind: str  # refused or lost


@dataclass(frozen=True)
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Outcome:
    """An exit code, and what runs that nobody was told of."""

    code: int
    untold: frozenset[str]
    said: str


Ec2 = Callable[..., Result]


def prepare(cloud: Cloud, folder: Path) -> None:
    """An account and a folder in which every command has what it asks for."""
    cloud.reset()
    cloud.prices = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
    cloud.quotas, cloud.denied = {}, set()
    if not (folder / "id").exists():  # the configuration of the tests lets ssh lead anywhere
        cloud.console = banner(make_key(folder / "id"))
        port = closed_port()
        (folder / "ssh").write_text(f"Host *\n  HostName 127.0.0.1\n  Port {port}\n")
        write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"),
                      ssh_config=str(folder / "ssh"), connect_timeout=1)  # fmt: skip
    cloud.console = banner((folder / "id.pub").read_text())


def ready(ec2: Ec2, cloud: Cloud, folder: Path, command: str) -> None:
    """What stands before a command."""
    prepare(cloud, folder)
    for words in COMMANDS[command][0]:
        done = ec2(*words)
        assert done.code == 0, done.err
    cloud.calls.clear()


def cases(ec2: Ec2, cloud: Cloud, folder: Path, command: str) -> list[Case]:
    """Every fault that a command can meet: those of the calls that it makes without any."""
    ready(ec2, cloud, folder, command)
    ec2(*COMMANDS[command][1])
    return [
        Case(command, call, number, kind)
        for call, count in sorted(Counter(cloud.calls).items())
        for number in range(1, count + 1)
        for kind in (("refused",) if call.startswith(LOOKS) else ("refused", "lost"))
    ]


def lost(words: dict[str, str], forward: Forward) -> Reply:
    """AWS does it, and the answer does not arrive."""
    forward()
    return LOST


def outcome(ec2: Ec2, cloud: Cloud, case: Case) -> Outcome:
    """What a command comes to with a fault. The account is ready for it."""
    before = costing(cloud)
    cloud.acts.clear()
    cloud.on(case.call, lambda *_: None, times=case.occurrence - 1)
    cloud.on(case.call, REFUSED if case.kind == "refused" else lost)
    done = ec2(*COMMANDS[case.command][1])
    cloud.acts.clear()
    said = done.out + done.err
    after = costing(cloud)
    # What ran before was told of before, unless the command says that it has ended it.
    ends = case.command in ENDS and (not done.code or after != before)
    known = frozenset() if ends else before
    return Outcome(done.code, frozenset(one for one in after - known if one not in said), said)


def costing(cloud: Cloud) -> frozenset[str]:
    """What the account pays for; disks that end with a host are told of with it."""
    found = everything(cloud)
    described = cloud.moto.client().describe_volumes()["Volumes"]
    loose = {one["VolumeId"] for one in described if not one["Attachments"]}
    return frozenset(found["instances"] | found["requests"] | loose)


def every(ec2: Ec2, cloud: Cloud, folder: Path, command: str) -> Iterator[tuple[Case, Outcome]]:
    """What comes of every fault in a command."""
    found = cases(ec2, cloud, folder, command)
    ready(ec2, cloud, folder, command)
    for case in found:
        if command in CHANGES:
            ready(ec2, cloud, folder, command)
        yield case, outcome(ec2, cloud, case)


HEADINGS: Final = {
    0: "it goes on without (0)",
    10: "it ends, and says what AWS refused (10)",
    11: "it ends: a host lets nobody in (11)",
    12: "it ends: a check failed (12)",
    14: "it ends, and names what is left (14)",
}


def page_of(found: list[tuple[Case, Outcome]]) -> str:
    """The table of the page: calls, and by what they came to the commands in which they failed."""
    codes = {(case.call, case.command, result.code) for case, result in found}
    shown = [code for code in HEADINGS if any(code == seen for *_, seen in codes)]
    if unknown := {code for *_, code in codes} - set(shown):
        raise ValueError(f"no heading for the exit codes {sorted(unknown)}")
    lines = ["| call | " + " | ".join(HEADINGS[code] for code in shown) + " |"]
    lines += ["| --- |" + " --- |" * len(shown)]
    for call in sorted({case.call for case, _ in found}):
        cells = [", ".join(f"`{one}`" for one in COMMANDS if (call, one, code) in codes)
                 for code in shown]  # fmt: skip
        lines.append(f"| {call} | " + " | ".join(cells) + " |")
    count = len({case.command for case, _ in found})
    told = f"{len(found)} faults in {count} commands. After none of them anything ran that "
    return told + "the command had not named.\n\n" + "\n".join(lines) + "\n"


def in_page() -> dict[str, dict[int, set[str]]]:
    """The commands of the page's table, by call and exit code."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in text.splitlines() if line.startswith("| ")]  # fmt: skip
    codes = [int(cell.rpartition("(")[2].rstrip(")")) for cell in rows[0][1:]]
    return {
        call: {
            code: set(re.findall("`(.*?)`", cell)) for code, cell in zip(codes, cells, strict=True)
        }
        for call, *cells in rows[2:]
    }


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
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(words))
        return Result(code, out.getvalue(), err.getvalue())

    with ExitStack() as stack:
        stack.callback(server.stop)
        stack.callback(cloud.stop)
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        stack.enter_context(patch.dict(os.environ, around, clear=True))
        stack.enter_context(patch("atomo_cluster.ec2.removal.BETWEEN_S", 0.0))
        stack.enter_context(patch("atomo_cluster.ec2.lifecycle.SETTLE_S", 0.0))
        yield ec2, cloud


def run(names: list[str]) -> list[tuple[Case, Outcome]]:
    """Every fault in some commands, with a line for each."""
    found = []
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as (ec2, cloud):
        for name in names:
            for case, result in every(ec2, cloud, Path(folder), name):
                found.append((case, result))
                bad = f"  NOT TOLD OF: {sorted(result.untold)}" if result.untold else ""
                what = f"{case.command:24} {case.call:36} {case.occurrence} {case.kind:8}"
                sys.stderr.write(f"{what} {result.code}{bad}\n")
    return found


def command(words: list[str]) -> int:
    """Runs some commands or all; --write puts the table of all into the page."""
    names = [word for word in words if word != "--write"]
    found = run(names or list(COMMANDS))
    text = page_of(found)
    if "--write" not in words:
        sys.stdout.write(text)
    else:
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(head + BEGIN + text + END + rest.partition(END)[2])
    return int(any(result.untold for _, result in found))


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
