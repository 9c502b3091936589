"""The loop over the plans of a run: all steps until a drift use the same plan.

Between two plans, all ranks are in the state of a resume: the next plan continues from a
checkpoint. So the residuals, by parameter name, carry over bit for bit to any codecs and messages,
and a run that ends there and is resumed has the same bits. A run that measures nothing has a single
plan.

Drift is the ratio of the median of the last steps to the prediction, so that neither a pause nor a
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
    """Limits on drift, and on the number of probes."""

    window: int = 25
    """Steps in the median; more => more reliable, but later."""
    factor: float = 1.5
    """Ratio of median and prediction, either way; three in four predictions are within 1.3."""
    steps: int = 25
    """Steps in a row beyond the factor."""
    rearm: float = 1.2
    """Ratio that steps must return to before another probe is possible."""
    distance: int = 200
    """Minimum number of steps between two probes."""
    share: float = 0.03
    """Share of the training time, past and still to come, that probes may take."""


RULES: Final = DriftRules()


@final
class DriftDetector:
    """Detector of drift on rank 0. After a resume it only has the plan, and no times of steps."""

    def __init__(
        self, expected_s: float, cost_s: float, spent_s: float = 0.0, rules: DriftRules = RULES
    ) -> None:
        """Starts with the next step.

        Args:
            expected_s: the predicted time of a step; 0: unknown, and no drift is detected.
            cost_s: the time of a probe.
            spent_s: the time of all probes so far.
            rules: the limits.
        """
        self.expected_s, self.rules = expected_s, rules
        self.measured_s = 0.0
        """The median of the last steps; 0 before there are enough of them."""
        self._cost_s, self._spent_s, self._trained_s = cost_s, spent_s, 0.0
        self._times: deque[float] = deque(maxlen=rules.window)
        self._since = self._beyond = 0  # steps since the last probe; drifted steps in a row
        self._armed = True

    def calls(self, step_s: float, remaining: int) -> bool:
        """Observes a step, with `remaining` steps to come; returns True if a probe is due."""
        self._times.append(step_s)
        self._trained_s += step_s
        self._since += 1
        if not self.expected_s or len(self._times) < self.rules.window:
            return False
        self.measured_s = statistics.median(self._times)
        if not self._armed:
            self._rearm()
        self._beyond = self._beyond + 1 if self._armed and self._off > self.rules.factor else 0
        return self._beyond >= self.rules.steps and self._pays(remaining)

    def probed(self, expected_s: float, cost_s: float) -> None:
        """Records the result of a probe: the predicted time of a step, and the probe's own time."""
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
        """Arms the detector again when steps are as predicted.

        If steps still differ after a new probe, the median replaces the prediction: the model is
        wrong, the machine has not changed, and another probe would give the same result.
        """
        if self._off > self.rules.rearm:
            if self._since < self.rules.window + self.rules.steps:
                return
            self.expected_s = self.measured_s
        self._armed = True

    def _pays(self, remaining: int) -> bool:
        """Returns True if a probe is allowed now, and enough steps remain to profit."""
        share = self.rules.share
        return (
            remaining > 1
            and self._since >= self.rules.distance
            and self._spent_s + self._cost_s <= share * self._trained_s
            and self._cost_s <= share * remaining * self.measured_s
        )


@final
class ReplanLoop:
    """The alternation of steps and new plans on a rank; rank 0 decides."""

    def __init__(
        self,
        settings: Settings,
        job: Job,
        transport: Transport,
        device: torch.device,
        tell: Callable[[Event], None],
        rules: DriftRules = RULES,
    ) -> None:
        """Starts before the first step.

        Args:
            settings: as the user gave them, resolved.
            job: with the first plan.
            transport: connects the ranks.
            device: of this rank.
            tell: receives the events of rank 0.
            rules: the limits.
        """
        self._settings, self._job, self._tell = settings, job, tell
        self._group = PlanGroup(transport, device, settings.timeout)
        took = [part.took_s for part in job.plan.parts]
        self._drift = DriftDetector(
            job.plan.expected_s, max(took, default=0.0), sum(took, 0.0), rules
        )
        self._paused_at = 0.0

    @property
    def watches(self) -> bool:
        """True, on all ranks, if the run may get another plan. Predictions do not include sums
        inside hosts, and all ranks of the first plan must still train.
        """
        settings = self._settings
        return settings.measures and settings.hierarchical == FLAT and not settings.spares

    @contextmanager
    def watching(self) -> Iterator[RunControl]:
        """Owns the folder while the block runs, if the run may get another plan."""
        if not self.watches or not self._group.leads:
            yield NO_CONTROL
            return
        with owned(Path(self._settings.train_dir)) as owner:
            yield RunControl(self._drifts, owner)

    def after(self, job: Job, step: int, reason: str) -> Job | None:
        """Returns the job with the next plan; None at the end of the run. All ranks call this
        together.

        Args:
            job: the job until now.
            step: the last step, on rank 0.
            reason: for the end of the steps, on rank 0.
        """
        if not self.watches or not self._group.share({"again": reason == DRIFTED})["again"]:
            return None
        gc.collect()  # the ended steps' objects have cycles
        drift = self._drift
        times = StepTimes(step, drift.measured_s, drift.expected_s)
        self._job = replan_job(self._settings, job, self._group, times)
        drift.probed(self._job.plan.expected_s, time.perf_counter() - self._paused_at)
        return self._job

    def _drifts(self, done: StepDone) -> bool:
        """Observes a step of rank 0; returns True if a new plan is due."""
        job, drift = self._job, self._drift
        if done.step < job.stages[-1].first_step:
            return False  # the prediction is for the codecs of the last stage
        before_s = drift.expected_s
        calls = drift.calls(done.step_s, job.last_step - done.step)
        if drift.expected_s != before_s:
            self._tell(Caution(
                f"steps take {1e3 * drift.expected_s:.1f} ms where {1e3 * before_s:.1f} were "
                "predicted from the last measurements: the prediction is off here, and drift "
                "counts from the measured time"
            ))  # fmt: skip
        self._paused_at = time.perf_counter()
        return calls
