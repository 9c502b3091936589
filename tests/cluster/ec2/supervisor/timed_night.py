"""A night of twelve hours by a clock of its own: what it costs, and which steps are done.

    python tests/cluster/ec2/supervisor/timed_night.py

Loop, decisions, event log, ledger, bill, plans, launches and `extend` are real, AWS is moto; the
guests, their setup and the training are simulated. AWS has no capacity for seven hours, takes three
workers (one with its notice), one guest hangs, and an `extend` does not reach one worker, whose own
fuse then ends it. The night is spent twice: by a job that two of five workers can continue, and by
one that needs all five.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from cluster.ec2.faults.rig import HOST, Ec2, prepare, rig
from cluster.ec2.faults.supervised import at_once, host_pool_of, sshless
from cluster.ec2.supervisor.timed_guests import Clock, Guests
from cluster.ec2.support.cloud import Cloud, everything, write_cluster

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.jobs.quorum import fewest_hosts
from atomo_cluster.ec2.supervisor import bounded
from atomo_cluster.ec2.supervisor.bounded import BoundedJob
from atomo_cluster.ec2.supervisor.decision import Limits
from atomo_cluster.ec2.supervisor.event_log import EventLog
from atomo_cluster.ec2.supervisor.host_pool import HostPool
from atomo_cluster.ec2.supervisor.loop import QUICK, Supervisor

__all__ = ["AUTOSTOP_M", "EVERY_M", "MAX_USD", "NIGHT", "STEPS", "WORKERS", "Folder", "Report",
           "spend", "table", "timed"]  # fmt: skip

EVERY_M, NIGHT_M, SETUP_M, START_M, CHECKPOINT_M = 4, 720, 8, 4, 12  # minutes
AUTOSTOP_M: Final = 30
WORKERS, MAX_HOURS, MAX_USD = 5, 8.0, 10.0
STEPS: Final = 2500  # of a worker's minutes
TAKEN, NOTICED, HUNG, EXTENDED, LAST = 60, 152, 240, 300, 600
UNREACHED: Final = '[ ! -e "$HOME/mute-$1" ] || exit 255\n'


class NightJob:
    """A training whose steps are the minutes of its workers, and results that are safe."""

    withdrawn, safe = False, True

    def __init__(self, clock: Clock, words: Sequence[str]) -> None:
        self._clock = clock
        self.needed = fewest_hosts(words, WORKERS + 1)
        self.running, self.code, self.hosts = False, None, ()
        self.steps, self._checkpoint, self._begin = 0, 0, 0

    def start(self, hosts: list[Instance], network: str) -> None:
        self.running, self.code, self._begin = True, None, self._clock.minutes + START_M
        self.hosts = tuple(host.id for host in hosts)

    def stop(self, notified: bool = False) -> None:
        if self.running:  # with a checkpoint of all steps
            self.running, self.code, self._checkpoint = False, 130, self.steps

    def forget(self) -> None:
        self.code = None

    def sync(self) -> None: ...
    def finish(self) -> None: ...

    def train(self, usable: Callable[[str], bool]) -> None:
        """Trains until the next look; a host that goes takes the steps since the checkpoint."""
        if not self.running:
            return
        if not all(map(usable, self.hosts)):
            self.running, self.code, self.steps = False, 5, self._checkpoint
        elif self._clock.minutes >= self._begin:
            self.steps = min(STEPS, self.steps + EVERY_M * (len(self.hosts) - 1))
            if self._clock.minutes % CHECKPOINT_M == 0:
                self._checkpoint = self.steps
            if self.steps == STEPS:
                self.running, self.code = False, 0


@dataclass(frozen=True)
class Report:
    """The figures of a night."""

    name: str
    minutes: int  # until all hosts have ended
    steps: int
    idle_m: int  # minutes in which hosts ran and nothing trained
    longest_idle_m: int
    requests: int  # that AWS refused
    hosts: int  # that were launched
    spent_usd: float  # by the lives of the hosts
    counted_usd: float  # by the supervisor
    promised_usd: float  # by the plan; after `extend` max_usd
    left: int  # hosts that still run
    events: tuple[tuple[str, str], ...]


NIGHT: Final = Limits(MAX_USD, 20, timedelta(minutes=AUTOSTOP_M))


class Folder:
    """A folder in which calls hang while `hung` says so."""

    def __init__(self, hung: Callable[[], bool]) -> None:
        self.hung = hung
        self._calls: list[tuple[Callable[[], None], Future[None]]] = []

    def call(self, act: Callable[[], None]) -> Future[None]:
        """Calls at once, or once the folder answers again."""
        future: Future[None] = Future()
        self._calls.append((act, future))
        self.answer()
        return future

    def answer(self) -> None:
        """Completes the calls that have waited."""
        if self.hung():
            return
        for act, future in self._calls:
            done = at_once(act)
            error = done.exception()
            future.set_exception(error) if error else future.set_result(None)
        self._calls.clear()


class Night:
    """A night: a cluster, its supervisor, and an operator who extends it once."""

    def __init__(self, ec2: Ec2, cloud: Cloud, folder: Path, clock: Clock, words: Sequence[str],
                 rules: Limits, hangs: range):  # fmt: skip
        self.rules, self.jobs = rules, Folder(lambda: clock.minutes in hangs)
        self.ec2, self.clock, self.folder = ec2, clock, folder
        self.guests, self.job = Guests(cloud, clock, folder), NightJob(clock, words)
        self._tasks: list[tuple[int, Callable[[], None], Future[None]]] = []
        self.idle, self.promised_usd = [0], 0.0
        self.cloud = cloud

    def launch(self) -> None:
        """Launches the cluster and begins its supervisor."""
        self.promised_usd = json.loads(self.ec2("plan", "--json").out)["usd_until_fuse"]
        assert self.ec2("launch", "--yes").code == 0
        self.pool: HostPool = host_pool_of(self.folder, sshless, self.guests.answers, self.later)
        story = EventLog(self.folder / "master" / "story.jsonl", self.clock.now)
        job = BoundedJob(self.job, self.jobs.call)
        self.supervisor = Supervisor(
            self.rules, job, self.pool, self.job, story, lambda: "", self.clock.now
        )
        story.tell("job", "job night")
        self.story = story

    def later(self, act: Callable[[], None]) -> Future[None]:
        """Sets hosts up beside the supervisor's loop."""
        future: Future[None] = Future()
        self._tasks.append((self.clock.minutes + SETUP_M, act, future))
        return future

    def prepare_hosts(self) -> None:
        """Completes the setups that are due."""
        for task in [task for task in self._tasks if task[0] <= self.clock.minutes]:
            self._tasks.remove(task)
            done, future = at_once(task[1]), task[2]
            error = done.exception()
            future.set_exception(error) if error else future.set_result(None)

    def worker(self) -> str:
        """Returns the worker of the job that has run longest."""
        return next(id for id in self.job.hosts[1:] if id in self.guests.alive())

    def happen(self) -> None:
        """Has happen what happens at this minute."""
        happenings: dict[int, Callable[[], None]] = {
            TAKEN: lambda: self.guests.take(self.worker()),
            NOTICED: self._notice,
            NOTICED + EVERY_M: self._end_noticed,
            HUNG: lambda: self.guests.hung.add(self.worker()),
            EXTENDED: self._extend,
            LAST: lambda: self.guests.take(self.worker()),
        }
        happenings.get(self.clock.minutes, lambda: None)()

    def _notice(self) -> None:
        self._noticed = self.worker()
        (self.folder / "master" / "notices").write_text(self._noticed)
        self.job.stop()

    def _end_noticed(self) -> None:
        if self._noticed in self.guests.alive():
            self.guests.take(self._noticed)

    def _extend(self) -> None:
        (self.folder / f"mute-{self.worker()}").touch()
        with patch("sys.stdin", io.StringIO("y\n")):
            done = self.ec2("extend", "9", "--max-usd", str(MAX_USD), "--json")
        assert done.code == 11, done  # one host was not reached
        self.promised_usd = MAX_USD  # which `extend` and the supervisor keep to

    def spend(self, name: str) -> Report:
        """Spends the night, and returns its figures."""
        self.launch()
        while self.clock.minutes < NIGHT_M and not self.supervisor._over:
            self.guests.burn()
            self.happen()
            self.prepare_hosts()
            self.jobs.answer()
            if not self.jobs.hung():
                self.job.train(lambda id: id in self.guests.alive() and id not in self.guests.hung)
            self._look()
            self.idle = [*self.idle[:-1], self.idle[-1] + EVERY_M] if not self.job.running else [
                *self.idle, *([0] if self.idle[-1] else [])]  # fmt: skip
            self.clock.minutes += EVERY_M
        return self._report(name)

    def _look(self) -> None:
        """Takes the steps of the supervisor that follow each other at once."""
        while self.supervisor.step().act in QUICK:
            pass

    def _report(self, name: str) -> Report:
        now, events = self.clock.now(), self.story.events
        return Report(
            name=name,
            minutes=self.clock.minutes,
            steps=self.job.steps,
            idle_m=sum(self.idle),
            longest_idle_m=max(self.idle),
            requests=sum(event.kind == "waiting" for event in events),
            hosts=len(self.guests.lives),
            spent_usd=sum(life.usd(now) for life in self.guests.lives.values()),
            counted_usd=self.pool.bill(now).usd or 0.0,
            promised_usd=self.promised_usd,
            left=len(everything(self.cloud)["instances"]),
            events=tuple((event.kind, event.text) for event in events),
        )


def nothing(*_: object) -> None:
    """Sets no guest up."""


def timed(ec2: Ec2, cloud: Cloud, folder: Path, name: str, *words: str,
          rules: Limits = NIGHT, hangs: range = range(0)) -> Report:  # fmt: skip
    """Spends a night with a job of these options, and returns its figures.

    `hangs` are the minutes in which the folder of the jobs does not answer.
    """
    prepare(cloud, folder)
    for left in (
        *folder.glob("master/**/*"),
        *folder.glob("mute-*"),
        *folder.glob("state/**/*.json"),
    ):
        if left.is_file():
            left.unlink()
    (folder / "host.sh").write_text(UNREACHED + HOST)
    write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), method="",
                  n_workers=WORKERS, max_hours=MAX_HOURS, max_usd=MAX_USD, supervise=True,
                  availability_zone="us-east-1a", private_addresses=True)  # fmt: skip
    clock = Clock()
    night = Night(ec2, cloud, folder, clock, words, rules, hangs)
    setup = patch.multiple(
        "atomo_cluster.ec2.supervisor.host_pool", bootstrap=nothing, run_commands=nothing
    )
    bounds = patch.multiple(bounded, LOOK_S=0.0, STOP_S=0.0)
    with clock.everywhere(), night.guests.served(), setup, bounds:
        return night.spend(name)


def spend() -> list[Report]:
    """Spends both nights."""
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as (ec2, cloud):
        return [
            timed(ec2, cloud, Path(folder), "two of five suffice", "--min-workers", "2"),
            timed(ec2, cloud, Path(folder), "all five needed", "--min-workers", "5"),
        ]


def table(reports: Sequence[Report]) -> str:
    """Returns the figures of nights as a table."""
    rows = [
        "| workers | steps done | ended after | nothing trained | longest | refused requests "
        "| hosts | spent | counted | at most |",
        "| --- " * 10 + "|",
    ]
    rows += [
        f"| {one.name} | {one.steps:,} of {STEPS:,} | {one.minutes // 60} h {one.minutes % 60} min "
        f"| {one.idle_m} min | {one.longest_idle_m} min | {one.requests} | {one.hosts} "
        f"| ${one.spent_usd:.2f} | ${one.counted_usd:.2f} | ${one.promised_usd:.2f} |"
        for one in reports
    ]
    return "\n".join(rows) + "\n"


def main() -> int:
    """Prints the table; returns 1 where a night cost more than was promised, or hosts are left."""
    reports = spend()
    if "--events" in sys.argv:
        for report in reports:
            sys.stdout.write("".join(f"{kind:9} {text}\n" for kind, text in report.events) + "\n")
    sys.stdout.write(table(reports))
    wrong = [one for one in reports if one.left or one.spent_usd > min(one.promised_usd, MAX_USD)]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
