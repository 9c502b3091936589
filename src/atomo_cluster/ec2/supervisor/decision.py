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
# Exit codes of `atomo` after the loss of a process or host; 137 and 255: it was killed.
LOSSES: Final = frozenset({5, 9, 137, 255, -9})
LEFT: Final = frozenset({130, 143, -2, -15})  # a checkpoint was requested, e.g. by a spot notice


class Action(Enum):
    """Actions of the supervisor."""

    WAIT = "wait"
    START = "start"
    RESTART = "restart"  # the hosts are there, the job is not
    REPLACE = "replace"  # ends the job with a checkpoint, replaces hosts, starts it again
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
    code: int | None  # exit code of the job; None: it runs, or was not started
    lost: tuple[str, ...]  # hosts that are gone, or will go
    outcome: str  # the result of the job; empty: none yet
    idle_since: datetime | None  # when nothing ran any more
    restarts: int
    safe: bool  # True if its results are stored outside the master's disk
    released: bool  # True if the workers have ended already
    usd: float | None  # upper bound on the cost of the cluster so far; None: unknown
    usd_per_hour: float | None  # upper bound on its present cost
    fuse: datetime  # of the master


@dataclass(frozen=True)
class Decision:
    """An action and its reason."""

    act: Action
    why: str = ""


def decide(view: Observation, rules: Limits) -> Decision:
    """Decides by priority: money first, then time, then the job."""
    return (
        limits(view, rules)
        or (ended(view) if not view.outcome and view.code is not None else None)
        or (idle(view, rules) if view.outcome else None)
        or (loss(view, rules) if not view.outcome else None)
        or started(view, rules)
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


def ended(view: Observation) -> Decision | None:
    """Decides about a job that has ended by itself."""
    if view.code == 0:
        return Decision(Action.FINISH, "the job is done")
    if view.lost or view.code in LOSSES:
        return None
    if view.code in LEFT:
        return Decision(Action.STOPPED, "the job was stopped, with a checkpoint")
    return Decision(Action.FAIL, f"the job ended with {view.code}, which a restart would not mend")


def idle(view: Observation, rules: Limits) -> Decision:
    """Decides about hosts without a job."""
    if view.outcome == DONE and view.safe:
        return Decision(Action.END, "the job is done, and its results are safe")
    since = view.now - (view.idle_since or view.now)
    if rules.autostop is None or since < rules.autostop:
        return Decision(Action.WAIT)
    why = f"nothing has run for {rules.autostop.total_seconds() / 60:g} minutes"
    if view.safe:
        return Decision(Action.END, f"{why}, and all results are safe")
    if not view.released:
        return Decision(Action.RELEASE, f"{why}; its results are on the master alone, which stays")
    return Decision(Action.WAIT)


def loss(view: Observation, rules: Limits) -> Decision | None:
    """Decides about lost hosts or a job that lost processes."""
    if not view.lost and view.code is None:
        return None
    if view.restarts >= rules.max_restarts:
        text = f"the job has been started again {view.restarts} times, which is max_restarts"
        return Decision(Action.FAIL, text)
    if view.lost:
        return Decision(Action.REPLACE, f"gone: {', '.join(view.lost)}")
    return Decision(Action.RESTART, f"the job lost processes, and ended with {view.code}")


def started(view: Observation, rules: Limits) -> Decision:
    """Starts the job unless it runs."""
    return Decision(Action.WAIT if view.running else Action.START)
