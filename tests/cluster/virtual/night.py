"""A night of a cluster on one machine: AWS, laptop, master and workers are virtual hosts.

    python tests/cluster/virtual/night.py --replacements 10 --minutes 20

trains LeNet over a master and three workers, has so many of them go in so many minutes, in every
way in which hosts go, and compares it with the same training that nothing happened to. It prints
the story and a verdict, and ends with 1 where the job did not come through.
"""

import argparse
import getpass
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from cluster.virtual.night_verdict import compare_with, undisturbed
from cluster.virtual.vc import ROOT, Tool, environment

PORT = 5055
CHECKOUT = "atomo-for-a-night"
LEAVE = ROOT / "src/atomo_cluster/ec2/hosts/scripts/leave_job.sh"
WAYS = ("taken", "noticed", "dead")
STORY = ".atomo/supervisor/story.jsonl"
ENDS = ("done", "failed", "stopped", "over")
CHANGES = ("started", "lost", "restart", "launched", "ready", "joined", *ENDS)
# So slow that the links set the pace, not the machine: a step takes down 2.6 MB of weights.
RATE, STEP_S = "25mbit", 0.8
SPARE = 3  # hosts for launches that come to nothing
LONGEST_S = 900.0  # a replacement takes one to two minutes on an idle machine
KEEP = "--mca btl_tcp_if_include 10.77.0.0/24 --prtemca prte_if_include 10.77.0.0/24"
TRAINING = (
    "--network=LeNet", "--dataset=Digits", "--batch-size=8", "--lr=0.005", "--threads=1",
    "--epochs=1000000", "--down=weights", "--checkpoint-every=5", "--keep-checkpoints=10",
)  # fmt: skip
AWS = """
import boto3, json, sys
client = boto3.client("ec2", region_name="us-east-1", endpoint_url=sys.argv[1],
                      aws_access_key_id="test", aws_secret_access_key="test")
print(json.dumps(getattr(client, sys.argv[2])(**json.loads(sys.argv[3])), default=str))
"""


class Night:
    """The hosts, by who they are: the last is AWS, and the laptop too."""

    def __init__(
        self, tool: Tool, folder: Path, hosts: int, workers: int, rate: str = "1gbit"
    ) -> None:
        self.tool, self.folder, self.workers, self.checkout = tool, folder, workers, CHECKOUT
        tool.does("up", "--hosts", str(hosts), "--rate", rate, "--own-homes")
        names = [f"h{n}" for n in range(1, hosts + 1)]
        at = {name: tool.host(name)["address"] for name in names}
        self.far, self.master = names[-1], ""
        self.url = f"http://{at[self.far]}:{PORT}"
        self.ssh = tool.clusters / "virtual" / "ssh"
        mine = folder / "state" / "night"  # a launch looks for its key here before it makes one
        mine.mkdir(parents=True)
        shutil.copy(self.ssh / "id_ed25519", mine)
        pairs = [f"{name}={at[name]}" for name in names[:-1]]
        script = Path(__file__).with_name("far_cloud.py")
        self.aws = tool.start(
            folder / "aws", "exec", self.far, sys.executable, str(script),
            str(self.ssh / "config"), at[self.far], str(PORT), *pairs,
        )  # fmt: skip
        self.until(lambda: "ready" in self.aws.output, "AWS")

    def until(self, true: Callable[[], object], what: str, longest_s: float = 400.0) -> None:
        """Waits, while AWS is there."""
        end = time.monotonic() + longest_s
        while not true():
            assert self.aws.process.poll() is None, self.aws.output
            assert time.monotonic() < end, f"{what}: {self.log()}"
            time.sleep(2.0)  # a look takes longer than a moment

    def __call__(self, command: str, *words: str) -> Any:
        """Returns the answer of a command that runs on the laptop."""
        options = [
            "--name=night", "--image-id=ami-785db401", "--ssh-from=203.0.113.7/32",
            f"--n-workers={self.workers}", f"--state-dir={self.folder / 'state'}",
            f"--ssh-username={getpass.getuser()}", f"--remote-dir={CHECKOUT}", "--supervise=yes",
            f"--endpoint-url={self.url}", "--private-addresses=yes", "--json",
        ]  # fmt: skip
        keys = ["env", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test"]
        line = [*keys, sys.executable, str(ROOT / "tools/pytorch_ec2.py"), command, *options]
        return json.loads(self.tool.does("exec", self.far, *line, *words))

    def launch(self, *words: str) -> None:
        """Launches the cluster. Sets `master`."""
        first = self("launch", "--yes", *words)[0]
        self.master = self.living()[first["id"]]

    def ec2(self, action: str, **words: object) -> Any:
        """Returns AWS's answer to a caller with all permissions."""
        line = [sys.executable, "-c", AWS, self.url, action, json.dumps(words)]
        return json.loads(self.tool.does("exec", self.far, *line))

    def living(self) -> dict[str, str]:
        """Returns the instances that AWS has not ended: host by identifier."""
        batches = self.ec2("describe_instances")["Reservations"]
        found = {one["InstanceId"]: one["State"]["Name"] for b in batches for one in b["Instances"]}
        names = dict(re.findall(r"(i-\w+) is (h\d+)", self.aws.output))
        return {id: names[id] for id, state in found.items() if state in ("pending", "running")}

    def on(self, host: str, command: str) -> str:
        """Returns the output of a command on a host."""
        return self.tool.does("exec", host, "bash", "-c", command)

    def lose(self, how: str) -> str:
        """Has a worker go; its identifier.

        `taken`: EC2 has ended it. `noticed`: EC2 has said that it will. `dead`: EC2 knows nothing.
        """
        found = {id: host for id, host in self.living().items() if host != self.master}
        id = min(found)
        if how == "noticed":
            self.on(found[id], f"bash {LEAVE} {id}")
            return id
        if how == "taken":
            self.ec2("terminate_instances", InstanceIds=[id])
        self.tool.does("kill", found[id])
        return id

    def events(self) -> list[dict[str, str]]:
        """Returns the events that the master recorded, each with its time, kind and text."""
        told = f"[ ! -e ~/{STORY} ] || cat ~/{STORY}"  # a supervisor that starts has no events
        return [json.loads(line) for line in self.on(self.master, told).splitlines()]

    def story(self, kind: str = "") -> list[str]:
        """Returns the words of a kind."""
        return [one["text"] for one in self.events() if kind in ("", one["kind"])]

    def whole(self, lost: str = "") -> bool:
        """True if the job runs, on as many hosts as it is to, without the one that was lost."""
        told = [one["kind"] for one in self.events() if one["kind"] in CHANGES]
        assert not set(told) & set(ENDS), f"the job has ended already: {self.log()}"
        if told[-1:] != ["started"]:
            return False
        living = self.living()
        return lost not in living and len(living) == self.workers + 1

    def log(self) -> str:
        """Returns the logs that help to find the cause of a failure."""
        told = "cat ~/.atomo/supervisor/story.jsonl ~/.atomo/supervisor/log; tail ~/*/train.log"
        return self.aws.output[-2000:] + self.on(self.master, f"{{ {told}; }} 2>&1 || true")

    def end(self) -> None:
        """Ends all processes that this object has started."""
        self.aws.kill()


def main() -> int:
    """Runs the long version of `test_night.py`, with a real training; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replacements", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--steps", type=int, help="of the training (default: so many that it "
                        "cannot be done before the last worker has gone)")  # fmt: skip
    options = parser.parse_args()
    steps = options.steps or round(options.minutes * 60 / STEP_S)
    with TemporaryDirectory() as name:
        folder = Path(name)
        tool = Tool(folder / "clusters")
        tool.environment |= environment(folder / "environment")
        try:
            return night_of(tool, folder, options.replacements, options.minutes * 60, steps)
        finally:
            tool.does("down", "--purge")


def night_of(tool: Tool, folder: Path, replacements: int, seconds_s: float, steps: int) -> int:
    """Runs one night, prints its events, and returns the exit code."""
    night = Night(tool, folder, 5 + replacements + SPARE, workers=3, rate=RATE)
    calm = undisturbed(folder / "calm", [*TRAINING, f"--max-steps={steps}"], night.workers + 1)
    try:
        lost = through(night, replacements, seconds_s, steps)
        say("\n".join(f"{one['when']}  {one['text']}" for one in night.events()))
        found = compare_with(night, calm, folder / "calm", lost, steps)
        say("\n".join(found.lines))
        return int(not found.through)
    finally:
        calm.kill()
        night.end()


def through(night: Night, replacements: int, seconds_s: float, steps: int) -> list[str]:
    """Trains through a night with evenly spread losses of hosts; returns the lost hosts."""
    night.launch("--max-usd=10")
    night("bootstrap", "--wait=60")
    train = [*TRAINING, f"--max-steps={steps}", f"--mpi-args={KEEP}"]
    night("train", "--max-usd=10", "--max-restarts=100", "--", *train)
    night.until(night.whole, "a start")
    begun, lost = time.monotonic(), []
    for number in range(replacements):
        due = begun + (number + 0.3) * seconds_s / replacements
        night.until(lambda: time.monotonic() >= due, "its time", 2 * seconds_s)  # noqa: B023
        way = WAYS[number % len(WAYS)]
        lost.append(night.lose(way))
        say(f"{time.monotonic() - begun:6.0f} s  {way} {lost[-1]}")
        night.until(lambda: night.whole(lost[-1]), "its replacement", LONGEST_S)
        say(f"{time.monotonic() - begun:6.0f} s  the job runs again, on {night.workers + 1} hosts")
    for host in night.living().values():  # the remaining hosts
        night.tool.does("throttle", host, "1gbit")
    night.until(lambda: any(night.story(kind) for kind in ENDS), "the end of the job", 3600.0)
    assert night.story("done"), night.log()
    return lost


def say(text: str) -> None:
    """Tells who looks on."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
