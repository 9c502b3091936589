"""The learning rate of each step, for the optimizer and for some memories."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from atomo.config.settings import Settings
from atomo.options.rates import RateSchedule, parse_milestones, schedule_factor, warm_up_factor

__all__ = ["LearningRate"]


@final
@dataclass(frozen=True)
class LearningRate:
    """The learning rate as a pure function of the step, for resolved settings."""

    settings: Settings
    steps_per_epoch: int = 1
    last_step: int = 1

    def at(self, step: int) -> float:
        """Returns the learning rate of `step`, which counts from 1."""
        s, done = self.settings, step - 1
        shrunk = s.peak_lr * s.lr_shrinkage ** (done // s.lr_shrink_freq)
        falls = schedule_factor(s.schedule, self._plan, done)
        return shrunk * falls * warm_up_factor(self._plan, done)

    @cached_property
    def _plan(self) -> RateSchedule:
        s = self.settings
        return RateSchedule(
            last=self.last_step,
            warm_up=self._steps(s.lr_warmup_epochs),
            warm_up_from=s.warmup_from,
            every=max(1, self._steps(s.lr_step_epochs)),
            milestones=tuple(map(self._steps, parse_milestones(s.lr_milestones))),
            gamma=s.lr_gamma,
            end=s.lr_end,
            whole=self.steps_per_epoch if s.lr_by_epoch else 1,
        )

    def _steps(self, epochs: float) -> int:
        return round(epochs * self.steps_per_epoch)
