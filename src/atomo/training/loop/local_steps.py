"""Local steps of one rank: each applies the rank's own gradient by the rank's own optimizer."""

from collections.abc import Mapping, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange import Report
from atomo.fusion import Bucket, named_slices
from atomo.options.weight_sync import DELTA, downlink_name
from atomo.training.checkpoints.schema import AHEAD, INNER, LOCAL, ROUND, START
from atomo.training.job.job import Job
from atomo.training.job.round_plan import Round
from atomo.training.optim.optimizer import FlatOptimizer
from atomo.training.step.forward_backward import Outcome

__all__ = ["LocalSteps", "joint_report", "saved_steps", "steps_taken"]


TAKEN: Final = 3  # in the figures of a round: the number of steps


@final
class LocalSteps:
    """The steps of one rank between two exchanges, with replicas and with a master."""

    def __init__(self, optimizer: FlatOptimizer, buckets: Sequence[Bucket]) -> None:
        """Starts before the first step of a round.

        Args:
            optimizer: of this rank; it steps the rank's own weights, and is never reset.
            buckets: the place of each parameter.
        """
        self._optimizer, self._buckets = optimizer, buckets
        self._sums = torch.zeros(4, dtype=torch.float64)  # as in a checkpoint, see `ROUND`

    def hold(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Takes the gradient of a bucket, during the backward pass."""
        self._optimizer.gradient[bucket.offset : bucket.offset + bucket.size].copy_(flat)

    def step(self, step: int, outcome: Outcome) -> None:
        """Takes step number `step` with the gradients that were held."""
        self._optimizer.step(step)
        figures = outcome.loss, outcome.correct, outcome.samples, 1.0
        self._sums += torch.tensor(figures, dtype=torch.float64)

    @property
    def taken(self) -> int:
        """The steps since the round began."""
        return int(self._sums[TAKEN])

    def report(self, times: Sequence[float] = (0.0, 0.0, 0.0, 0.0)) -> Report:
        """Returns the report of the steps since the last report: the mean loss, and all samples.

        Args:
            times: the seconds of passes, encoding, sending and waiting.
        """
        loss, correct, samples, steps = self._sums.tolist()
        self._sums.zero_()
        return Report(loss / max(1.0, steps), correct, samples, *times)

    def state_dict(self, *, mid_round: bool) -> dict[str, Tensor]:
        """Returns the state of this rank's optimizer and, in the middle of a round, its weights and
        the figures of its steps.
        """
        inner = {INNER + name: tensor for name, tensor in self._optimizer.state_dict().items()}
        if not mid_round:
            return inner
        own = named_slices(self._optimizer.weights, self._buckets)
        return inner | {LOCAL + name: tensor for name, tensor in own} | {ROUND: self._sums}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict`. Other entries of a worker's state are ignored."""
        inner = {n.removeprefix(INNER): t for n, t in state.items() if n.startswith(INNER)}
        self._optimizer.load_state_dict(inner)
        self._sums = state.get(ROUND, torch.zeros_like(self._sums)).clone()
        for name, view in named_slices(self._optimizer.weights, self._buckets):
            if LOCAL + name in state:
                view.copy_(state[LOCAL + name])


def joint_report(done: Sequence[Outcome], compute_s: float) -> Report:
    """Returns the report of local steps: the mean loss, and all samples."""
    loss = sum((each.loss for each in done), 0.0) / max(1, len(done))
    correct = sum((each.correct for each in done), 0.0)
    samples = sum((each.samples for each in done), 0.0)
    return Report(loss, correct, samples, compute_s, 0.0, 0.0, 0.0)


def saved_steps(job: Job, round_: Round) -> range:
    """Returns the steps in the middle of a round after which workers send a master their states.

    With `--down delta(...)` there are none: workers begin a round at weights that differ from the
    anchor by what the codec of differences dropped, and a checkpoint has no such weights. Nor are
    there with fragments, an overlap or a mix, nor with rounds of a given time, in the middle of
    which each worker is elsewhere.
    """
    local = job.settings.local
    lacks = local.streams or local.seconds or downlink_name(job.settings.down) == DELTA
    if not round_.is_local or lacks:
        return range(0)
    every = job.settings.eval_freq
    return range(round_.first + -round_.first % every, round_.last, every)


def steps_taken(states: Sequence[Mapping[str, Tensor]]) -> int:
    """Returns the steps that all workers have taken since the round began; 0 if their states are
    not those of one step in the middle of a round.
    """
    taken = {int(state[ROUND][TAKEN]) if ROUND in state else 0 for state in states}
    names = [{name.partition("/")[0] + "/" for name in state} for state in states]
    is_one = len(taken) == 1 and all(LOCAL in own and START not in own for own in names)
    is_one = is_one and not any(AHEAD in state for state in states)
    return taken.pop() if is_one else 0
