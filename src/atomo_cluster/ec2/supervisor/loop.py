"""The supervisor's loop: observe, decide, act. No error of AWS or a host ends it."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol, final, runtime_checkable

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.launch.capacity import lacks_capacity
from atomo_cluster.ec2.money.costs import Bill
from atomo_cluster.ec2.settings.terms import ROLES, WORKER
from atomo_cluster.ec2.supervisor.backoff import Backoff
from atomo_cluster.ec2.supervisor.decision import Action, Decision, Limits, Observation, decide
from atomo_cluster.ec2.supervisor.event_log import (
    DONE,
    FAILED,
    JOINED,
    LAUNCHED,
    LOST,
    NOTE,
    OVER,
    READY,
    RESTART,
    SEEN,
    STARTED,
    STOPPED,
    UNSEEN,
    WAITING,
    EventLog,
)
from atomo_cluster.errors import CloudError, ClusterError, NotReady

__all__ = ["QUICK", "Hosts", "Store", "Supervisor", "Training"]


@runtime_checkable
class Training(Protocol):
    """The job."""

    @property
    def running(self) -> bool: ...
    @property
    def code(self) -> int | None: ...
    @property
    def withdrawn(self) -> bool: ...
    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def needed(self) -> int: ...
    def start(self, hosts: Sequence[Instance], network: str) -> None: ...
    def stop(self, notified: bool = False) -> None: ...
    def forget(self) -> None: ...


@runtime_checkable
class Hosts(Protocol):
    """The cluster."""

    hosts: list[Instance]
    ready: list[Instance]
    going: tuple[str, ...]
    noticed: tuple[str, ...]
    missing: int

    @property
    def preparing(self) -> bool: ...
    def master(self) -> Instance: ...
    def look(self, now: datetime) -> None: ...
    def bill(self, now: datetime) -> Bill: ...
    def drop(self, ids: tuple[str, ...]) -> None: ...
    def launch(self, now: datetime) -> list[str]: ...
    def prepared(self) -> list[Instance]: ...
    def end(self, roles: tuple[str, ...]) -> list[str]: ...


@runtime_checkable
class Store(Protocol):
    """The destination of results."""

    def sync(self) -> None: ...
    def finish(self) -> None: ...
    @property
    def safe(self) -> bool: ...


GONE: Final = "gone: "
UNSEEN_AFTER: Final = timedelta(minutes=2)  # without a look at the job that succeeds
QUICK: Final = (Action.RESTART, Action.DROP, Action.JOIN)  # another action follows at once


@final
class Supervisor:
    """One job on one cluster."""

    def __init__(
        self, rules: Limits, job: Training, crew: Hosts, store: Store, story: EventLog,
        network: Callable[[], str], now: Callable[[], datetime],
    ) -> None:  # fmt: skip
        self._rules, self._job, self._crew, self._store = rules, job, crew, store
        self._story, self._network, self._now = story, network, now
        self._released = self._over = self._start_failed = self._drop_failed = False
        self._backoff = Backoff(story.job, len(story.waits))
        self._refusal, self._affordable = "", True  # of the last request for hosts
        self._heeded: set[str] = set()  # hosts whose notice has ended the job
        self._seen: datetime | None = None  # time of the last look at the job that succeeded
        self._acts: Final[dict[Action, Callable[[Decision, Observation], None]]] = {
            Action.WAIT: lambda decision, view: None,
            Action.START: self._start,
            Action.RESTART: lambda decision, view: self._restart(decision.why),
            Action.DROP: self._drop,
            Action.JOIN: self._join,
            Action.LAUNCH: self._launch,
            Action.FINISH: lambda decision, view: self._ended(DONE, decision),
            Action.STOPPED: lambda decision, view: self._ended(STOPPED, decision),
            Action.FAIL: lambda decision, view: self._ended(FAILED, decision),
            Action.RELEASE: self._release,
            Action.END: self._end,
        }

    def run(self, every_s: float, pause: Callable[[float], None] = time.sleep) -> None:
        """Repeats steps until all hosts are terminated."""
        while not self._over:
            act = self.step().act
            pause(0.0 if self._over or act in QUICK else every_s)

    def step(self) -> Decision:
        """Observes, decides and acts once. Errors are recorded, and the next step tries again."""
        try:
            self._sync()
            self._collect()
            view = self._view()
            decision = decide(view, self._rules)
            self._acts[decision.act](decision, view)
        except (ClusterError, OSError) as error:
            self._story.note(f"{type(error).__name__}: {error}; tried again")
            return Decision(Action.WAIT)
        return decision

    def _view(self) -> Observation:
        now, story, crew = self._now(), self._story, self._crew
        running = self._see_job(now)
        self._look(now)
        bill = crew.bill(now)
        return Observation(
            now=now,
            running=running is True,
            unseen=running is None,
            code=self._job.code if running is False else None,
            withdrawn=running is False and self._job.withdrawn,
            lost=self._lost(),
            going=crew.going,
            ready=len(crew.ready),
            needed=self._job.needed,
            joining=tuple(host.id for host in crew.ready if host.id not in self._job.hosts),
            missing=crew.missing,
            preparing=crew.preparing,
            ask_at=self._backoff.due,
            refusal=self._refusal,
            affordable=self._affordable,
            start_failed=self._start_failed,
            drop_failed=self._drop_failed,
            outcome=story.outcome,
            idle_since=None if running else story.idle_since,
            restarts=story.restarts,
            safe=self._is_safe(),
            released=self._released,
            usd=bill.usd,
            usd_per_hour=bill.usd_per_hour,
            fuse=crew.master().fuse,
        )

    def _see_job(self, now: datetime) -> bool | None:
        """Returns whether the job runs; None: its folder does not answer, and money is watched."""
        try:
            running = self._job.running
        except (ClusterError, OSError) as error:
            self._miss(now, str(error))
            return None
        self._seen = now
        if self._story.unseen_since is not None:
            self._story.tell(SEEN, "the folder of the jobs and results answers again")
        return running

    def _miss(self, now: datetime, error: str) -> None:
        """Records a look that failed, once none has succeeded for UNSEEN_AFTER."""
        self._seen = self._seen or now
        story = self._story
        if now - self._seen >= UNSEEN_AFTER and not story.unseen_since and not story.outcome:
            story.tell(
                UNSEEN, f"{error}, and nothing is seen training; money and autostop count on"
            )

    def _is_safe(self) -> bool:
        """True if the results are stored; they are not if their folder does not answer."""
        try:
            return self._store.safe
        except (ClusterError, OSError) as error:
            self._story.note(f"{error}; results do not count as safe")
            return False

    def _look(self, now: datetime) -> None:
        """Updates the hosts; while AWS does not answer money is watched all the same."""
        try:
            self._crew.look(now)
        except CloudError as error:
            self._story.note(f"{error}; asked again")
            return
        if self._story.outcome:
            return
        losses = [event.text for event in self._story.of_job if event.kind == LOST]
        known = {id for text in losses for id in text.removeprefix(GONE).split(", ")}
        if lost := [host for host in self._lost() if host not in known]:
            self._story.tell(LOST, f"{GONE}{', '.join(lost)}")

    def _lost(self) -> tuple[str, ...]:
        """Returns the hosts of the job that are gone, and all that will go."""
        there = {host.id for host in self._crew.hosts}
        gone = [host for host in self._job.hosts if host not in there]
        return (*gone, *self._crew.going)

    def _collect(self) -> None:
        """Records the end of the setup of new hosts."""
        try:
            hosts = self._crew.prepared()
        except Exception as error:  # a defect there is no reason to watch no money
            if not self._story.outcome:  # or they were ended with the others
                self._refuse(f"the setup of new hosts failed: {error}")
            return
        if hosts:
            self._backoff.succeed()
            listed = ", ".join(host.id for host in hosts[1:])
            self._story.tell(READY, f"{len(hosts)} hosts are there again: {listed}")

    def _sync(self) -> None:
        """Stores results; a failure means that they are not safe, and does not end the step."""
        try:
            self._store.sync()
        except (ClusterError, OSError) as error:
            self._story.note(f"{error}; tried again")

    def _start(self, decision: Decision, view: Observation) -> None:
        hosts, self._start_failed = self._crew.ready, True
        self._job.start(hosts, self._network())
        self._start_failed = False
        self._heeded |= set(self._crew.noticed)  # of which they have told an earlier start
        if [event.kind for event in self._story.events[-1:]] != [STARTED]:  # or it had to wait
            self._story.tell(STARTED, f"the job starts on {len(hosts)} hosts")

    def _restart(self, why: str) -> None:
        self._story.tell(RESTART, why)
        self._job.forget()

    def _drop(self, decision: Decision, view: Observation) -> None:
        notices = set(self._crew.noticed) - self._heeded
        self._heeded |= notices
        if notices and view.running:  # the notice has told the job to write a checkpoint and end
            self._job.stop(True)
            if self._job.code:
                self._restart(f"the job ended with {self._job.code}, by EC2's notice")
        self._drop_failed = True
        self._crew.drop(view.going)
        self._drop_failed = False

    def _join(self, decision: Decision, view: Observation) -> None:
        self._job.stop()
        self._story.tell(JOINED, f"{decision.why}; the job was stopped, to start on all hosts")
        if self._job.code != 0:  # or it was done just now
            self._job.forget()

    def _launch(self, decision: Decision, view: Observation) -> None:
        try:
            ids = self._crew.launch(view.now)
        except (ClusterError, OSError) as error:
            self._affordable = not isinstance(error, NotReady)
            self._refuse(f"no host for {decision.why}: {reason(error)}")
            return
        self._refusal, self._affordable, self._backoff.due = "", True, None
        part = "" if len(ids) >= view.missing else f" ({len(ids)} of {view.missing})"
        self._story.tell(LAUNCHED, f"{', '.join(ids)} for {decision.why}{part}; setup begins")

    def _refuse(self, text: str) -> None:
        """Records a failed request for hosts, and the time of the next one."""
        self._refusal, due = text, self._backoff.fail(self._now())
        self._story.tell(WAITING, f"{text}; request {self._backoff.failures}, the next one at "
                                  f"{due:%R} UTC")  # fmt: skip

    def _ended(self, kind: str, decision: Decision) -> None:
        self._stop_job()
        self._story.tell(kind, decision.why)
        self._job.forget()

    def _stop_job(self) -> None:
        """Stops the job; a folder that hangs is no reason to go on paying for hosts."""
        try:
            self._job.stop()
        except (ClusterError, OSError) as error:
            self._story.note(f"the job was not stopped: {error}")

    def _release(self, decision: Decision, view: Observation) -> None:
        ids = self._crew.end((WORKER,))
        self._released = True
        if ids:
            self._story.tell(OVER, f"{decision.why}; ordered to end: {', '.join(ids)}")

    def _end(self, decision: Decision, view: Observation) -> None:
        self._stop_job()
        kinds = [event.kind for event in self._story.events if event.kind != NOTE]
        if kinds[-1:] != [OVER]:  # or AWS refused it
            self._story.tell(OVER, f"{decision.why}; all hosts are ordered to end")
        self._store.finish()
        self._crew.end(tuple(reversed(ROLES)))
        self._over = True


def reason(error: Exception) -> str:
    """Formats the cause of a failed request; a shortage needs no advice, as it is asked again."""
    if isinstance(error, CloudError) and lacks_capacity(error):
        return f"AWS has no capacity ({error.code})"
    return str(error)
