"""The loop of a run whose codecs or messages are measured: steps by one plan until they drift.

Between two plans all ranks stand where they would after a resume: the next plan goes on from a
checkpoint. So the memories' residuals, by parameter name, carry over bit for bit, whatever the new
codecs and messages are, and a run that ends there and continues has the same bits. A run that
measures nothing has one plan.

Drift is the median of the last steps against the prediction, so that neither a pause nor a
checkpoint counts. Equal steps give equal decisions: time enters only as the seconds of steps.
"""

import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch

from atomo.config.settings import Settings
from atomo.options.hierarchy import FLAT
from atomo.training.job.events import DRIFTED, Caution, Event, StepDone
from atomo.training.job.job import Job
from atomo.training.job.run_control import NO_CONTROL, RunControl
from atomo.training.planner.planner import PlanGroup
from atomo.training.planner.replan import StepTimes, replan_job
from atomo.training.records.run_recorder import owned
from atomo.transports import Transport

__all__ = ["RULES", "DriftDetector", "DriftRules", "ReplanLoop"]


@final
@dataclass(frozen=True)
class DriftRules:
    """Limits of a drift: how far is too far, and how often is too often."""

    window: int = 25
    """Steps in the median; more => surer, and later."""
    factor: float = 1.5
    """Ratio of median and prediction, either way; three in four predictions are within 1.3."""
    steps: int = 25
    """Steps in a row beyond the factor."""
    rearm: float = 1.2
    """Ratio that steps must come back to before they may call for another probe."""
    distance: int = 200
    """Least number of steps from one probe to the next."""
    share: float = 0.03
    """Share of the training time, past and still to come, that probes may take."""


RULES: Final = DriftRules()


@final
class DriftDetector:
    """A detector of drifted steps on rank 0. After a resume it knows only the plan."""

    def __init__(
        self, expected_s: float, cost_s: float, spent_s: float = 0.0, rules: DriftRules = RULES
    ) -> None:
        """Starts with the next step.

        Args:
            expected_s: what one was predicted to take; 0: nobody knows, and nothing is a drift.
            cost_s: what a probe takes.
            spent_s: on probes so far.
            rules: when to probe.
        """
        self.expected_s, self.rules = expected_s, rules
        self.measured_s = 0.0
        """The median of the last steps; 0 before there are enough of them."""
        self._cost_s, self._spent_s, self._trained_s = cost_s, spent_s, 0.0
        self._times: deque[float] = deque(maxlen=rules.window)
        self._since = self._beyond = 0  # steps from the last probe on; in a row that are off
        self._armed = True

    def calls(self, step_s: float, left: int) -> bool:
        """Takes in a step, with `left` steps to come; returns True if it is time to probe."""
        self._times.append(step_s)
        self._trained_s += step_s
        self._since += 1
        if not self.expected_s or len(self._times) < self.rules.window:
            return False
        self.measured_s = statistics.median(self._times)
        if not self._armed:
            self._rearm()
        self._beyond = self._beyond + 1 if self._armed and self._off > self.rules.factor else 0
        return self._beyond >= self.rules.steps and self._pays(left)

    def probed(self, expected_s: float, cost_s: float) -> None:
        """Takes in the result of a probe: the predicted time of a step."""
        self.expected_s, self._cost_s = expected_s, cost_s
        self._spent_s += cost_s
        self._times.clear()
        self._since = self._beyond = 0
        self._armed = False

    @property
    def _off(self) -> float:
        """The ratio of median and prediction, either way."""
        return max(self.measured_s / self.expected_s, self.expected_s / max(self.measured_s, 1e-12))

    def _rearm(self) -> None:
        """Arms again once steps are as predicted. If a new probe does not explain the steps, the
        median takes the place of the prediction: then the model is off, not the machine, and
        another probe would give the same.
        """
        if self._off > self.rules.rearm:
            if self._since < self.rules.window + self.rules.steps:
                return
            self.expected_s = self.measured_s
        self._armed = True

    def _pays(self, left: int) -> bool:
        """Returns True if a probe is allowed now and enough steps are left to profit."""
        share = self.rules.share
        return (
            left > 1
            and self._since >= self.rules.distance
            and self._spent_s + self._cost_s <= share * self._trained_s
            and self._cost_s <= share * left * self.measured_s
        )


@final
class ReplanLoop:
    """The alternation of steps and new plans on a rank; rank 0 decides."""

    def __init__(
        self,
        asked: Settings,
        job: Job,
        transport: Transport,
        device: torch.device,
        tell: Callable[[Event], None],
        rules: DriftRules = RULES,
    ) -> None:
        """Starts before the first step.

        Args:
            asked: the settings as they were given, resolved.
            job: of the first leg.
            transport: connects the ranks.
            device: where this rank computes.
            tell: gets the events of rank 0.
            rules: when to probe.
        """
        self._asked, self._job, self._tell = asked, job, tell
        self._group = PlanGroup(transport, device, asked.timeout)
        took = [part.took_s for part in job.plan.parts]
        self._drift = DriftDetector(
            job.plan.expected_s, max(took, default=0.0), sum(took, 0.0), rules
        )
        self._paused_at = 0.0

    @property
    def watches(self) -> bool:
        """True on all ranks if there may be another plan. Predictions know no sums inside hosts,
        and all ranks that trained at the start must be there.
        """
        asked = self._asked
        return asked.measures and asked.hierarchical == FLAT and not asked.spares

    @contextmanager
    def watching(self) -> Iterator[RunControl]:
        """Owns the folder while its block runs, if there may be another plan."""
        if not self.watches or not self._group.leads:
            yield NO_CONTROL
            return
        with owned(Path(self._asked.train_dir)) as owner:
            yield RunControl(self._drifts, owner)

    def after(self, job: Job, step: int, reason: str) -> Job | None:
        """Returns the job with the next plan; None: the run is over. All ranks call this together.

        Args:
            job: of the leg that has ended.
            step: its last one, on rank 0.
            reason: why it ended, on rank 0.
        """
        if not self.watches or not self._group.share({"again": reason == DRIFTED})["again"]:
            return None
        gc.collect()  # the ended steps' objects have cycles
        drift = self._drift
        times = StepTimes(step, drift.measured_s, drift.expected_s)
        self._job = replan_job(self._asked, job, self._group, times)
        drift.probed(self._job.plan.expected_s, time.perf_counter() - self._paused_at)
        return self._job

    def _drifts(self, done: StepDone) -> bool:
        """Takes in a step of rank 0; returns True if it is time for a new plan."""
        job, drift = self._job, self._drift
        if done.step < job.stages[-1].first_step:
            return False  # a prediction is of the codecs that serve in the end
        before_s = drift.expected_s
        calls = drift.calls(done.step_s, job.last_step - done.step)
        if drift.expected_s != before_s:
            self._tell(Caution(
                f"steps take {1e3 * drift.expected_s:.1f} ms where {1e3 * before_s:.1f} were "
                "predicted from what was measured just before: the prediction is off here, and "
                "drift counts from what they take"
            ))  # fmt: skip
        self._paused_at = time.perf_counter()
        return calls
