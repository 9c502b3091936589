"""The optimizer of a master: steps of gradients, and outer steps of mean differences."""

from collections.abc import Mapping
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange.outer.rotation import unrotate
from atomo.fusion import Bucket, named_slices
from atomo.options.outer import Outer, parse_outer
from atomo.options.rounds import DCT
from atomo.training.checkpoints.schema import OUTER, check_tensor, without_rounds
from atomo.training.job.job import Job
from atomo.training.job.round_plan import Round, RoundSource
from atomo.training.optim.optimizer import FlatOptimizer

__all__ = ["MOMENTUM", "RoundOptimizer", "make_flat_optimizer", "make_optimizer"]

MOMENTUM: Final = OUTER + "momentum/"  # in a state: the outer momentum of a parameter


@final
class RoundOptimizer:
    """Optimizer that steps weights by gradients, and the anchor by mean differences.

    With a master a step is a round, and its number the number of the round. Buffers, which follow
    the parameters, are averaged with them.
    """

    def __init__(
        self, weights: Float[Tensor, " n"], job: Job, rounds: RoundSource, *, averages: bool = True
    ) -> None:
        """Creates an optimizer before its first round.

        Args:
            weights: the weights to update: the anchor, in rounds of local steps.
            job: the training run.
            rounds: the rounds of the run.
            averages: as of `FlatOptimizer`.
        """
        self._job, self._rounds, self.weights = job, rounds, weights
        self.gradient = torch.zeros_like(weights)
        self._inner = make_flat_optimizer(weights[: job.entries], job, averages=averages)
        self._inner.gradient = self.gradient[: job.entries]
        self._outer = parse_outer(job.settings.outer)
        self._momentum = torch.zeros_like(self._inner.weights) if self._outer.momentum else None
        self._rotates = job.settings.transform == DCT
        self.has_anchor = False
        """True if the last step was an outer step."""

    def step(self, step: int, factor: float = 1.0) -> None:
        """Takes the step of a round.

        Args:
            step: the number of the round.
            factor: on the learning rate of a step with gradients.
        """
        round_ = self._rounds.numbered(step)
        self.has_anchor = round_.is_local
        if round_.is_local:
            self._step_anchor(round_)
        else:
            self._inner.step(round_.last, factor)

    def _step_anchor(self, round_: Round) -> None:
        """Takes an outer step of the part of the model that a round exchanges."""
        outer = self._outer.at_rate(self._job.rate.at(round_.last))
        for bucket in self._job.served_buckets(round_):
            span = slice(bucket.offset, bucket.offset + bucket.size)
            if bucket.offset < self._job.entries:
                self._step_bucket(outer, bucket, span)
            else:  # the mean of the buffers: each worker began at those of the anchor
                self.weights[span].sub_(self.gradient[span])
        if self._inner.average is not None:
            self._inner.average.update(self._inner.weights, round_.steps)

    def _step_bucket(self, outer: Outer, bucket: Bucket, span: slice) -> None:
        if self._rotates:
            for _, view in named_slices(self.gradient, [bucket]):
                view.copy_(unrotate(view))
        momentum = None if self._momentum is None else self._momentum[span]
        outer.step(self.weights[span], momentum, self.gradient[span])

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state: that of `FlatOptimizer`, or the outer momentum by parameter."""
        if not self.has_anchor:
            return self._inner.state_dict()
        buckets, average = self._job.buckets, self._inner.average
        state = average.state_dict(buckets) if average else {}
        if self._momentum is None:
            return state
        slices = named_slices(self._momentum, buckets)
        return state | {MOMENTUM + name: tensor for name, tensor in slices}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict`.

        Raises:
            CheckpointError: the state is of another model or optimizer.
        """
        self._inner.load_state_dict(without_rounds(state))
        self.has_anchor = any(name.startswith(MOMENTUM) for name in state)
        if self._momentum is None or not self.has_anchor:
            return
        for name, view in named_slices(self._momentum, self._job.buckets):
            own = state.get(MOMENTUM + name, torch.zeros_like(view))
            check_tensor(MOMENTUM + name, own, view)
            view.copy_(own)


def make_optimizer(
    weights: Float[Tensor, " n"], job: Job, rounds: RoundSource, *, averages: bool = True
) -> FlatOptimizer | RoundOptimizer:
    """Returns the optimizer of a master, or of a worker that repeats the master's steps."""
    if job.settings.has_local_steps:
        return RoundOptimizer(weights, job, rounds, averages=averages)
    return make_flat_optimizer(weights, job, averages=averages)


def make_flat_optimizer(
    weights: Float[Tensor, " n"], job: Job, *, averages: bool = True
) -> FlatOptimizer:
    """Returns the optimizer of the settings of a run."""
    layout = weights, job.buckets, job.settings, job.rate
    return FlatOptimizer(*layout, averages=averages, matrices=job.matrices)
