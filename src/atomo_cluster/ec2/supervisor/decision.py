"""The decision of the supervisor: a pure function of its observations."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from atomo_cluster.ec2.money.prices import format_usd
from atomo_cluster.ec2.supervisor.event_log import DONE

__all__ = ["Action", "Decision", "Limits", "Observation", "decide"]

# Time for a checkpoint and for the orders that end the hosts.
MARGIN: Final = timedelta(minutes=5)
WORTHWHILE: Final = timedelta(minutes=12)  # time until the fuse that is worth the start of a host
# Exit codes of `atomo` after the loss of a process or host; 137 and 255: it was killed.
LOSSES: Final = frozenset({5, 9, 137, 255, -9})
LEFT: Final = frozenset({130, 143, -2, -15})  # a checkpoint was requested, e.g. by a spot notice


class Action(Enum):
    """Actions of the supervisor."""

    WAIT = "wait"
    START = "start"  # the job starts on the hosts that are ready
    RESTART = "restart"  # the job lost processes; START follows once enough hosts are ready
    DROP = "drop"  # ends hosts that nobody can use
    JOIN = "join"  # stops the job with a checkpoint, since new hosts are ready; START follows
    LAUNCH = "launch"  # asks AWS for missing workers, and sets them up beside the job
    FINISH = "finish"  # the job is done
    STOPPED = "stopped"  # a person has ended it
    FAIL = "fail"  # for good
    RELEASE = "release"  # the workers end; the master has results that are not stored elsewhere
    END = "end"  # all hosts end


@dataclass(frozen=True)
class Limits:
    """Limits that hold during the whole job."""

    max_usd: float | None
    max_restarts: int
    autostop: timedelta | None


@dataclass(frozen=True)
class Observation:
    """Observations of the supervisor."""

    now: datetime
    running: bool  # True if the job runs
    unseen: bool  # True if the last look at the job failed: it may run
    code: int | None  # exit code of the job; None: it runs, or was not started
    withdrawn: bool  # True if a person has stopped it with `stop`
    lost: tuple[str, ...]  # hosts that the job had or has, and that are gone, or will go
    going: tuple[str, ...]  # hosts to end: EC2 takes them back, they are silent, or setup failed
    ready: int  # hosts on which the job can start, the master's included
    needed: int  # the fewest hosts on which it may run
    joining: tuple[str, ...]  # ready hosts that the running job does not have
    missing: int  # workers to launch
    preparing: bool  # True while new hosts are set up
    ask_at: datetime | None  # time of the next request for hosts; None: now
    refusal: str  # why the last request failed; empty: it did not
    affordable: bool  # False if the last request would have exceeded max_usd
    start_failed: bool  # True if the last start of the job failed
    drop_failed: bool  # True if AWS last refused to end hosts
    outcome: str  # the result of the job; empty: none yet
    idle_since: datetime | None  # when nothing trained any more; None: the job runs
    restarts: int
    safe: bool  # True if its results are stored outside the master's disk
    released: bool  # True if the workers have ended already
    usd: float | None  # upper bound on the cost of the cluster so far; None: unknown
    usd_per_hour: float | None  # upper bound on its present cost
    fuse: datetime  # of the master

    @property
    def idle_for(self) -> timedelta:
        """Time for which nothing has trained."""
        return timedelta(0) if self.idle_since is None else self.now - self.idle_since

    @property
    def too_late(self) -> bool:
        """True if the fuse is too close for a new host."""
        return self.fuse - self.now < WORTHWHILE


@dataclass(frozen=True)
class Decision:
    """An action and its reason."""

    act: Action
    why: str = ""


def decide(view: Observation, rules: Limits) -> Decision:
    """Decides by priority: money, time, the job, its hosts.

    The job goes on with the hosts that are left while AWS is asked for others.
    """
    return (
        limits(view, rules)
        or (idle(view, rules) if view.outcome else None)
        or (unseen(view, rules) if view.unseen else None)
        or (ended(view, rules) if view.code is not None and not view.outcome else None)
        or (stopped(view, rules) if not view.running else None)
        or changed(view)
        or launching(view)
        or Decision(Action.WAIT)
    )


def limits(view: Observation, rules: Limits) -> Decision | None:
    """Ends all hosts if money or time is about to run out."""
    if rules.max_usd is not None and view.usd is not None and view.usd_per_hour is not None:
        soon = view.usd + view.usd_per_hour * (MARGIN.total_seconds() / 3600)
        if soon >= rules.max_usd:
            text = f"{format_usd(view.usd)} of max_usd {format_usd(rules.max_usd)} are spent"
            return Decision(Action.END, text)
    if view.now + MARGIN >= view.fuse:
        return Decision(Action.END, f"the fuse is at {view.fuse:%F %R} UTC")
    return None


def idle(view: Observation, rules: Limits) -> Decision:
    """Decides about hosts whose job has ended for good."""
    if view.outcome == DONE and view.safe:
        return Decision(Action.END, "the job is done, and its results are safe")
    if not overdue(view, rules):
        return Decision(Action.WAIT)
    why = f"nothing has trained for {minutes(rules)} minutes"
    if view.safe:
        return Decision(Action.END, f"{why}, and all results are safe")
    if not view.released:
        return Decision(Action.RELEASE, f"{why}; its results are on the master alone, which stays")
    return Decision(Action.WAIT)


def unseen(view: Observation, rules: Limits) -> Decision:
    """Decides about a job that cannot be seen: it is neither started nor given new hosts."""
    if overdue(view, rules):
        why = f"nothing is seen training for {minutes(rules)} minutes"
        return Decision(Action.FAIL, f"{why}: the folder of the jobs or results does not answer")
    return unusable(view) or Decision(Action.WAIT)


def overdue(view: Observation, rules: Limits) -> bool:
    """True if nothing has trained for `autostop` minutes."""
    return rules.autostop is not None and view.idle_for >= rules.autostop


def minutes(rules: Limits) -> str:
    """Formats `autostop`."""
    return f"{(rules.autostop or timedelta(0)).total_seconds() / 60:g}"


def ended(view: Observation, rules: Limits) -> Decision:
    """Decides about a job that has ended by itself."""
    if view.code == 0:
        return Decision(Action.FINISH, "the job is done")
    if view.withdrawn or (not view.lost and view.code in LEFT):
        return Decision(Action.STOPPED, "the job was stopped, with a checkpoint")
    if not view.lost and view.code not in LOSSES:
        text = f"the job ended with {view.code}, which a restart would not mend"
        return Decision(Action.FAIL, text)
    if view.restarts >= rules.max_restarts:
        text = f"the job has been started again {view.restarts} times, which is max_restarts"
        return Decision(Action.FAIL, text)
    cause = f"gone: {', '.join(view.lost)}" if view.lost else "it lost processes"
    return Decision(Action.RESTART, f"the job ended with {view.code}; {cause}")


def changed(view: Observation) -> Decision | None:
    """Decides about hosts to end, and new hosts for the job."""
    drop = unusable(view)
    if drop and not view.drop_failed:
        return drop
    if view.running and view.joining:
        return Decision(Action.JOIN, f"ready: {', '.join(view.joining)}")
    return drop


def unusable(view: Observation) -> Decision | None:
    """Decides about hosts of no use."""
    return Decision(Action.DROP, f"of no use: {', '.join(view.going)}") if view.going else None


def stopped(view: Observation, rules: Limits) -> Decision | None:
    """Decides about a job that does not run: it starts, waits for hosts, or fails."""
    enough = view.ready >= view.needed
    if enough and not (view.start_failed and overdue(view, rules)):
        return Decision(Action.START)
    lack = f"{view.ready} hosts are ready, and the job needs {view.needed}"
    if not enough and view.missing and view.too_late:
        return Decision(Action.FAIL, f"{lack}; the fuse is too close for new ones")
    if not enough and view.missing and not view.affordable:
        return Decision(Action.FAIL, f"{lack}; {view.refusal}")
    if overdue(view, rules):
        why = f"nothing has trained for {minutes(rules)} minutes: {lack}"
        return Decision(Action.FAIL, f"{why}{view.refusal and f'; {view.refusal}'}")
    return None


def launching(view: Observation) -> Decision | None:
    """Decides whether to ask AWS for missing workers now."""
    if not view.missing or view.preparing or view.too_late:
        return None
    if view.ask_at is not None and view.now < view.ask_at:
        return None
    return Decision(Action.LAUNCH, f"{view.missing} of the workers")
