"""The supervisor's loop: observe, decide, act. No error of AWS or a host ends it."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol, final, runtime_checkable

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.hosts.ssh import Host
from atomo_cluster.ec2.money.costs import Bill
from atomo_cluster.ec2.settings.terms import ROLES, WORKER
from atomo_cluster.ec2.supervisor.decision import Action, Decision, Limits, Observation, decide
from atomo_cluster.ec2.supervisor.event_log import (
    DONE,
    FAILED,
    LOST,
    OVER,
    RESTART,
    STARTED,
    STOPPED,
    EventLog,
)
from atomo_cluster.errors import CloudError, ClusterError, NotReady

__all__ = ["Hosts", "Store", "Supervisor", "Training"]


@runtime_checkable
class Training(Protocol):
    """The job."""

    @property
    def running(self) -> bool: ...
    @property
    def code(self) -> int | None: ...
    def start(self, hosts: int, network: str) -> None: ...
    def stop(self, notified: bool = False) -> None: ...
    def forget(self) -> None: ...


@runtime_checkable
class Hosts(Protocol):
    """The cluster."""

    hosts: list[Instance]
    noticed: bool

    def master(self) -> Instance: ...
    def look(self, now: datetime) -> tuple[str, ...]: ...
    def bill(self, now: datetime) -> Bill: ...
    def replace(self, lost: tuple[str, ...], now: datetime) -> list[Host]: ...
    def end(self, roles: tuple[str, ...]) -> list[str]: ...


@runtime_checkable
class Store(Protocol):
    """The destination of results."""

    def sync(self) -> None: ...
    def finish(self) -> None: ...
    @property
    def safe(self) -> bool: ...


@final
class Supervisor:
    """One job on one cluster."""

    def __init__(
        self, rules: Limits, job: Training, crew: Hosts, store: Store, story: EventLog,
        network: Callable[[], str], now: Callable[[], datetime],
    ) -> None:  # fmt: skip
        self._rules, self._job, self._crew, self._store = rules, job, crew, store
        self._story, self._network, self._now = story, network, now
        self._released = self._over = False
        self._acts: Final[dict[Action, Callable[[Decision, Observation], None]]] = {
            Action.WAIT: lambda decision, view: None,
            Action.START: self._start,
            Action.RESTART: self._restart,
            Action.REPLACE: self._replace,
            Action.FINISH: lambda decision, view: self._ended(DONE, decision),
            Action.STOPPED: lambda decision, view: self._ended(STOPPED, decision),
            Action.FAIL: lambda decision, view: self._ended(FAILED, decision),
            Action.RELEASE: self._release,
            Action.END: self._end,
        }

    def run(self, every_s: float, pause: Callable[[float], None] = time.sleep) -> None:
        """Repeats steps until all hosts are terminated."""
        while not self._over:
            self.step()
            pause(0.0 if self._over else every_s)

    def step(self) -> Decision:
        """Observes, decides and acts once. Errors are recorded, and the next step tries again."""
        decision = Decision(Action.WAIT)
        try:
            self._sync()
            view = self._view()
            decision = decide(view, self._rules)
            self._acts[decision.act](decision, view)
        except NotReady as error:
            self._ended(FAILED, Decision(Action.FAIL, str(error)))
        except (ClusterError, OSError) as error:
            self._story.note(f"{type(error).__name__}: {error}; tried again")
        return decision

    def _view(self) -> Observation:
        now, story = self._now(), self._story
        lost = self._seen(now)
        bill = self._crew.bill(now)
        return Observation(
            now=now,
            running=self._job.running,
            code=self._job.code,
            lost=lost,
            outcome=story.outcome,
            idle_since=story.idle_since,
            restarts=story.restarts,
            safe=self._store.safe,
            released=self._released,
            usd=bill.usd,
            usd_per_hour=bill.usd_per_hour,
            fuse=self._crew.master().fuse,
        )

    def _seen(self, now: datetime) -> tuple[str, ...]:
        """Returns the lost hosts; none while AWS does not answer, since money must be watched."""
        try:
            return self._crew.look(now)
        except CloudError as error:
            self._story.note(f"{error}; asked again")
            return ()

    def _sync(self) -> None:
        """Stores results; a failure means that they are not safe, and does not end the step."""
        try:
            self._store.sync()
        except (ClusterError, OSError) as error:
            self._story.note(f"{error}; tried again")

    def _start(self, decision: Decision, view: Observation) -> None:
        self._job.start(len(self._crew.hosts), self._network())
        if [event.kind for event in self._story.events[-1:]] != [STARTED]:  # or it had to wait
            self._story.tell(STARTED, f"the job starts on {len(self._crew.hosts)} hosts")

    def _restart(self, decision: Decision, view: Observation) -> None:
        self._story.tell(RESTART, decision.why)
        self._job.forget()

    def _replace(self, decision: Decision, view: Observation) -> None:
        losses = [event.text for event in self._story.of_job if event.kind == LOST]
        if losses[-1:] != [decision.why]:
            self._story.tell(LOST, decision.why)
        self._job.stop(self._crew.noticed)
        hosts = self._crew.replace(view.lost, view.now)
        self._story.tell(RESTART, f"{len(hosts)} hosts are there again: "
                                  f"{', '.join(host.id for host in hosts[1:])}")  # fmt: skip
        self._job.forget()

    def _ended(self, kind: str, decision: Decision) -> None:
        self._job.stop()
        self._story.tell(kind, decision.why)
        self._job.forget()

    def _release(self, decision: Decision, view: Observation) -> None:
        ids = self._crew.end((WORKER,))
        self._released = True
        if ids:
            self._story.tell(OVER, f"{decision.why}; ordered to end: {', '.join(ids)}")

    def _end(self, decision: Decision, view: Observation) -> None:
        self._job.stop()
        if [event.kind for event in self._story.events[-1:]] != [OVER]:  # or AWS refused it
            self._story.tell(OVER, f"{decision.why}; all hosts are ordered to end")
        self._store.finish()
        self._crew.end(tuple(reversed(ROLES)))
        self._over = True
