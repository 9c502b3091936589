"""The legs of a run whose codecs or messages are measured: steps by one plan, until they drift.

Between two legs all ranks stand where they would after a resume: there is a checkpoint, from which
the next leg goes on. So what memories keep, by parameter name, is carried over to the last bit,
whatever the codecs and messages are then, and a run that ends and is continued there has the same
bits. A run that measures nothing has one leg.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import torch

from atomo.config import Settings
from atomo.hierarchy import FLAT
from atomo.training.drift import RULES, Drift, Rules
from atomo.training.events import DRIFTED, Caution, Event, StepDone
from atomo.training.job import Job
from atomo.training.keeper import owned
from atomo.training.replanning import Seen, replanned
from atomo.training.telling import hear, tell
from atomo.training.watched import UNWATCHED, Watched
from atomo.transports import Transport

__all__ = ["Legs"]


@final
class Legs:
    """What a rank does between legs, and on rank 0 what calls for another one."""

    def __init__(
        self,
        asked: Settings,
        job: Job,
        transport: Transport,
        device: torch.device,
        tell: Callable[[Event], None],
        rules: Rules = RULES,
    ) -> None:
        """Before the first leg.

        Args:
            asked: the settings as they were given, resolved.
            job: of the first leg.
            transport: connects the ranks.
            device: where this rank computes.
            tell: gets the events of rank 0.
            rules: when to probe.
        """
        self._asked, self._job, self._transport = asked, job, transport
        self._device, self._tell = device, tell
        took = [one.took_s for one in (job.chosen, job.found) if one]
        self._drift = Drift(job.expected_s, max(took, default=0.0), sum(took, 0.0), rules)
        self._paused_at = 0.0

    @property
    def watches(self) -> bool:
        """Whether there may be another leg, alike on all ranks. Predictions know of no sums inside
        hosts, and all that train would have to be there who did at the start.
        """
        asked = self._asked
        return asked.measures and asked.hierarchical == FLAT and not asked.spares

    @contextmanager
    def watching(self) -> Iterator[Watched]:
        """Has the folder to itself while its block runs, where there may be another leg."""
        if not self.watches or self._transport.rank:
            yield UNWATCHED
            return
        with owned(Path(self._asked.train_dir)) as owner:
            yield Watched(self._drifts, owner)

    def after(self, job: Job, step: int, reason: str) -> Job | None:
        """The job of the next leg; None: the run is over. All ranks call it together.

        Args:
            job: of the leg that has ended.
            step: its last one, on rank 0.
            reason: why it ended, on rank 0.
        """
        if not self.watches or not self._agreed(reason == DRIFTED):
            return None
        gc.collect()  # what ended has cycles
        drift = self._drift
        seen = Seen(step, drift.measured_s, drift.expected_s)
        self._job = replanned(self._asked, job, self._transport, self._device, seen)
        drift.probed(self._job.expected_s, time.perf_counter() - self._paused_at)
        return self._job

    def _agreed(self, again: bool) -> bool:
        """What rank 0 says."""
        if self._transport.rank:
            return bool(hear(self._transport, self._asked.timeout)["again"])
        tell(self._transport, {"again": again})
        self._transport.drain(self._asked.timeout)
        return again

    def _drifts(self, done: StepDone) -> bool:
        """Takes in a step of rank 0."""
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
