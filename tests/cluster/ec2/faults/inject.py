"""Every call to AWS fails once in every command: the command's messages, and the resources that
still run.

    python tests/cluster/ec2/faults/inject.py  # of all commands: many minutes
    python tests/cluster/ec2/faults/inject.py launch shutdown  # of some
    python tests/cluster/ec2/faults/inject.py --write  # puts all into the page
    python tests/cluster/ec2/faults/inject.py --each launch  # at every one of its calls

A fault is one of three: `refused`, where AWS does nothing; `lost`, where AWS does what was asked
and the answer never arrives; `again`, where it does not arrive either, and boto3 asks once more.
What only looks is refused; what changes something meets all three. A call that a command makes
several times fails at the first of them, and in a case of its own at the last. With --keep FOLDER
cases are kept there, and not tried again.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from cluster.ec2.faults.neighbours import Neighbours
from cluster.ec2.faults.page import BEGIN, END, PAGE, page_of
from cluster.ec2.faults.rig import (
    COMMANDS,
    MAX_USD,
    Ec2,
    clients_of,
    most_usd,
    ready,
    rig,
    running,
)
from cluster.ec2.faults.saved import saved
from cluster.ec2.support.cloud import (
    Cloud,
    Forward,
    Reply,
    refusal,
    refusal_of_scheduler,
)

from atomo_cluster.ec2.aws.tags import IMAGE
from atomo_cluster.ec2.images.baked import named_in

__all__ = ["Case", "Outcome", "cases", "outcome"]

LOOKS: Final = ("Describe", "Get", "List", "Simulate")
MESSAGE: Final = "You are not authorized to do this"
# Codes that botocore does not ask again for: the fault reaches the command.
REFUSED: Final = refusal("UnauthorizedOperation", MESSAGE)
LOST: Final = refusal("IncompleteSignature", "the answer was lost on the way")
AGAIN: Final = Reply(500, refusal("InternalError", "an internal error has occurred").body)
SPOKEN: Final = {  # by services that do not speak as EC2 does
    **dict.fromkeys(("ListObjectsV2", "GetObject"), (
        f"<Error><Code>AccessDenied</Code><Message>{MESSAGE}</Message></Error>", "text/xml")),
    **dict.fromkeys(("GetProducts", "ListServiceQuotas", "GetParameters"), (
        json.dumps({"__type": "AccessDeniedException", "message": MESSAGE}),
        "application/x-amz-json-1.1")),
    **dict.fromkeys(("DescribeMountTargets", "DescribeFileSystems",
                     "DescribeMountTargetSecurityGroups"), (
        json.dumps({"code": "AccessDeniedException", "message": MESSAGE}), "application/json")),
}  # fmt: skip
SCHEDULER: Final = {  # replies of EventBridge Scheduler
    "refused": refusal_of_scheduler("AccessDeniedException", MESSAGE, 403),
    "lost": refusal_of_scheduler("IncompleteSignature", "the answer was lost on the way"),
    "again": refusal_of_scheduler("InternalServerException", "an internal error", 500),
}


@dataclass(frozen=True)
class Case:
    """One fault in one command."""

    command: str
    call: str
    occurrence: int  # the first is 1
    kind: str  # refused, lost or again


@dataclass(frozen=True)
class Outcome:
    """The result of a command: its exit code, and the faults of its report."""

    code: int
    untold: frozenset[str]  # resources that run and were not named
    usd: float  # that all hosts cost until their fuses
    limit: float  # `max_usd`
    said: str
    names: bool  # whether an error names the call that failed
    touched: tuple[str, ...] = ()  # other places in which a host ended or began

    @property
    def wrong(self) -> str:
        """The defects to mend; empty if there are none."""
        return "; ".join(
            [f"NOT TOLD OF: {', '.join(sorted(self.untold)[:9])}"] * bool(self.untold)
            + [f"MAY COST {self.usd:.2f} OF {self.limit:.2f} USD"] * (self.usd > self.limit)
            + ["DOES NOT NAME THE CALL"] * (not self.names)
            + [f"CHANGED ANOTHER PLACE: {', '.join(self.touched)}"] * bool(self.touched)
            + [f"A DEFECT: {self.said[-300:]}"] * (self.code == 1)
        )


def cases(ec2: Ec2, cloud: Cloud, folder: Path, command: str, each: bool = False) -> list[Case]:
    """Returns the faults that a command can meet: those of the calls that it makes when nothing
    fails.
    """
    ready(ec2, cloud, folder, command)
    done = ec2(*COMMANDS[command].words)
    assert done.code == 0, f"{command} without a fault: {done.out}{done.err}"
    return [
        Case(command, call, number, kind)
        for call, count in sorted(Counter(cloud.calls).items())
        for number in (range(1, count + 1) if each else sorted({1, count}))
        for kind in (("refused",) if call.startswith(LOOKS) else ("refused", "lost", "again"))
    ]


def fault(case: Case) -> Reply | object:
    """Returns the reply that AWS gives in place of an answer."""
    scheduled = SCHEDULER[case.kind] if re.search("Schedule(Group)?$", case.call) else None
    if case.kind == "refused" and scheduled:
        return scheduled
    if case.kind == "refused":
        spoken = SPOKEN.get(case.call)
        return Reply(403, spoken[0].encode(), spoken[1]) if spoken else REFUSED
    reply = scheduled or (LOST if case.kind == "lost" else AGAIN)

    def done(words: dict[str, str], forward: Forward) -> Reply:
        given[words.get("ClientToken", "")] = forward()
        return reply

    return done


given: Final[dict[str, Reply]] = {}  # replies of calls that AWS has carried out, by client token


def once(words: dict[str, str], forward: Forward) -> Reply | None:
    """AWS does a thing once that is asked for twice with one token, and moto does not."""
    return given.get(words["ClientToken"]) if words.get("ClientToken") else None


def outcome(
    ec2: Ec2,
    cloud: Cloud,
    folder: Path,
    neighbours: Neighbours,
    case: Case,
    costing_before: frozenset[str] | None = None,
) -> Outcome:
    """Runs a command with a fault and returns the outcome. The account is ready for the command.

    Resources that cost before are looked for, unless they are given.
    """
    tried = COMMANDS[case.command]
    before = costing(cloud) if costing_before is None else costing_before
    cloud.acts.clear()
    cloud.on(case.call, lambda *_: None, times=case.occurrence - 1)
    cloud.on(case.call, fault(case))  # type: ignore[arg-type]
    cloud.on(case.call, once)
    done = ec2(*tried.words)
    cloud.acts.clear()
    said, after = done.out + done.err, costing(cloud)
    # Resources that ran before were named before, unless the command says that it has ended them.
    acted = not done.code or after != before
    known = {one for one in before if not (acted and one.startswith(tried.ends))}
    return Outcome(
        done.code, frozenset(one for one in after - known if one not in said),
        most_usd(cloud, folder), limit(tried.words), said, not done.code or named(case.call, said),
        tuple(neighbours.touched()),
    )  # fmt: skip


def named(call: str, said: str) -> bool:
    """True if a message names a call: `ec2.run_instances` is RunInstances."""
    return call.lower() in re.sub(r"[_\W]", "", said.lower())


def limit(words: tuple[str, ...]) -> float:
    """`max_usd`, of the settings or of a command."""
    return float(words[words.index("--max-usd") + 1]) if "--max-usd" in words else MAX_USD


def costing(cloud: Cloud) -> frozenset[str]:
    """Returns the resources that the account pays for, and the requests that may still bring a
    host.

    Resources that end with a host or an image are left out, since the command names that one. So
    are requests that brought a host.
    """
    client, ours = cloud.moto.client(), [{"Name": "tag-key", "Values": [IMAGE]}]  # moto has more
    elsewhere = {one["InstanceId"] for other in clients_of(cloud)[1:] for one in running(other)}
    loose = {one["VolumeId"] for one in client.describe_volumes()["Volumes"]
             if not one["Attachments"]}  # fmt: skip
    requests = client.describe_spot_instance_requests()["SpotInstanceRequests"]
    loose |= {one["SpotInstanceRequestId"] for one in requests if one["State"] == "open"}
    baked = {one["ImageId"] for one in client.describe_images(Filters=ours)["Images"]}
    baked |= {one["SnapshotId"] for one in client.describe_snapshots(Filters=ours)["Snapshots"]
              if named_in(one) not in baked}  # fmt: skip
    return frozenset(living_instances(client) | elsewhere | loose | baked)


def living_instances(client: Any) -> set[str]:
    """Returns the instances that have not ended."""
    batches = client.describe_instances()["Reservations"]
    return {one["InstanceId"] for batch in batches for one in batch["Instances"]
            if one["State"]["Name"] != "terminated"}  # fmt: skip


def every(
    ec2: Ec2, cloud: Cloud, folder: Path, command: str, each: bool
) -> Iterator[tuple[Case, Outcome]]:
    """Yields the outcome of every fault in a command."""
    found = cases(ec2, cloud, folder, command, each)
    neighbours = ready(ec2, cloud, folder, command)
    before = costing(cloud)
    with saved(cloud, folder) as state:
        for case in found:
            if COMMANDS[command].changes:
                state.restore()
            yield case, outcome(ec2, cloud, folder, neighbours, case, before)


def run(names: list[str], keep: Path | None, each: bool) -> list[tuple[Case, Outcome]]:
    """Returns every fault in some commands, with a line for each."""
    found = []
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as (ec2, cloud):
        for name in names:
            ours = kept(keep, name) or [*with_progress(every(ec2, cloud, Path(folder), name, each))]
            found += ours
            if keep is not None:
                lines = [{"case": asdict(case), "outcome": asdict(result) | {
                          "untold": sorted(result.untold)}} for case, result in ours]  # fmt: skip
                (keep / f"{name}.json").write_text(json.dumps(lines))
    return found


def with_progress(found: Iterator[tuple[Case, Outcome]]) -> Iterator[tuple[Case, Outcome]]:
    """Prints a line for each case, and yields it unchanged."""
    for case, result in found:
        what = f"{case.command:24} {case.call:36} {case.occurrence} {case.kind:8}"
        sys.stderr.write(f"{what} {result.code}  {result.wrong}".rstrip() + "\n")
        yield case, result


def kept(keep: Path | None, name: str) -> list[tuple[Case, Outcome]]:
    """Returns the outcomes of a command that an earlier run stored, without those to mend."""
    path = keep and keep / f"{name}.json"
    if not path or not path.exists():
        return []
    lines = json.loads(path.read_text())
    found = [
        (Case(**one["case"]),
         Outcome(**one["outcome"] | {"untold": frozenset(one["outcome"]["untold"]),
                                    "touched": tuple(one["outcome"]["touched"])}))
        for one in lines
    ]  # fmt: skip
    return [] if any(result.wrong for _, result in found) else found


def command(words: list[str]) -> int:
    """Runs some commands or all; --write puts the table of them into the page."""
    keep = Path(words.pop(words.index("--keep") + 1)) if "--keep" in words else None
    names = [word for word in words if not word.startswith("--")]
    found = run(names or list(COMMANDS), keep, "--each" in words)
    if wrong := [case for case, result in found if result.wrong]:
        listed = "".join(f"  {case}\n" for case in wrong)
        sys.stderr.write(f"{len(wrong)} of {len(found)} faults have a wrong outcome; "
                         f"no page is made of them:\n{listed}")  # fmt: skip
        return 1
    text = page_of([(case.command, case.call, result.code) for case, result in found])
    if "--write" not in words:
        sys.stdout.write(text)
    else:
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(head + BEGIN + text + END + rest.partition(END)[2])
    return 0


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
