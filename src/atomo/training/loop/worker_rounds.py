"""Rounds of local steps of a worker with a master: what it sends, and where it continues."""

from collections.abc import Iterator, Mapping
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atomo.errors import Diverged
from atomo.exchange.outer.rotation import rotate
from atomo.fusion import Bucket, named_slices
from atomo.options.rounds import DCT
from atomo.training.checkpoints.schema import AHEAD, LOCAL
from atomo.training.job.job import Job, floating_buffers
from atomo.training.job.round_plan import Round, RoundSource
from atomo.training.loop.local_steps import LocalSteps
from atomo.training.loop.master_weights import divide, joined

__all__ = ["WorkerRounds"]

NO_ROUND: Final = 0


@final
class WorkerRounds:
    """The weights and buffers of a worker between two anchors.

    The anchor of a master is flat: all parameters, and then the buffers that have a mean.
    """

    def __init__(
        self,
        job: Job,
        rounds: RoundSource,
        model: nn.Module,
        weights: Float[Tensor, " n"],
        local: LocalSteps,
    ) -> None:
        """Starts before the first round.

        Args:
            job: the training run.
            rounds: the rounds of the run.
            model: the model of this worker.
            weights: all its parameters, flat.
            local: the local steps of this worker.
        """
        self._job, self._rounds, self._weights = job, rounds, weights
        self._buffers = [*floating_buffers(model).values()] if job.buffer_buckets else []
        self._rotates = job.settings.transform == DCT
        self.local = local
        """The local steps of this worker."""
        self._last = NO_ROUND  # the round of the weights; 0: they are not those of a round
        self._resumes = self._is_ahead = False

    def flat(self) -> Float[Tensor, " m"]:
        """Returns a copy of the weights and buffers in the layout of an anchor."""
        return joined(self._weights, self._buffers)

    def begin(self, anchor: Float[Tensor, " m"], round_: Round) -> int:
        """Continues from an anchor: with its weights, or mixed with those of this worker where only
        a fragment was exchanged or `--mix` keeps a part.

        Args:
            anchor: the anchor before the round.
            round_: the round.

        Returns:
            The steps of the round that this worker took before a checkpoint interrupted it.
        """
        resumes, taken = self._resumes, self.local.taken
        if not resumes:
            self._continue_from(anchor, round_)
        self._last, self._resumes, self._is_ahead = round_.number, False, False
        return taken if resumes else 0

    def _continue_from(self, anchor: Float[Tensor, " m"], round_: Round) -> None:
        """Applies the anchor to the parts that were exchanged since the last round."""
        entries, first = self._job.entries, self._last
        if self._is_ahead:
            first = round_.number - 1
        if self._buffers and (first or not self._follows_gradients(round_)):
            divide(anchor[entries:], self._buffers)
        if not first:
            self._weights.copy_(anchor[:entries])
        for number in range(first, round_.number if first else 0):
            before = self._rounds.numbered(number)
            for bucket in self._job.served_buckets(before):
                if bucket.offset < entries:
                    span = slice(bucket.offset, bucket.offset + bucket.size)
                    own, mix = self._weights[span], self._mix(before)
                    own.copy_(torch.lerp(anchor[span], own, mix) if mix else anchor[span])

    def _follows_gradients(self, round_: Round) -> bool:
        """Returns True for the first round after steps of gradients: the buffers of workers have no
        mean until it ends.
        """
        return round_.number > 1 and not self._rounds.numbered(round_.number - 1).is_local

    def _mix(self, round_: Round) -> float:
        """Returns the weight of this worker's own weights after a round."""
        return 0.0 if round_.ends_phase else float(self._job.settings.local.mix)

    def differences(
        self, anchor: Float[Tensor, " m"], round_: Round
    ) -> Iterator[tuple[Bucket, Tensor]]:
        """Yields the differences between the anchor and this worker, bucket by bucket, as they are
        sent. They may be changed.

        Raises:
            Diverged: the weights are no longer finite.
        """
        whole = anchor - self.flat()
        for bucket in self._job.served_buckets(round_):
            own = whole[bucket.offset : bucket.offset + bucket.size]
            if not bool(own.isfinite().all()):
                raise Diverged("weights are no longer finite; the last checkpoint is kept")
            if self._rotates and bucket.offset < self._job.entries:
                for _, view in named_slices(whole, [bucket]):
                    view.copy_(rotate(view))
            yield bucket, own

    def state_dict(self, *, mid_round: bool) -> dict[str, Tensor]:
        """Returns the state of the local steps for a checkpoint.

        Args:
            mid_round: False at the end of a round: of the worker's own weights the state then has
                those that the next anchor does not replace.
        """
        before = self._rounds.numbered(self._last) if self._last else None
        is_local = before is not None and before.is_local
        keeps = before is not None and (before.fragment is not None or self._mix(before) > 0)
        ahead = not mid_round and is_local and keeps
        state = self.local.state_dict(mid_round=mid_round or ahead)
        return state | ({AHEAD: torch.ones(())} if ahead else {})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict`. Other entries are ignored."""
        self.local.load_state_dict(state)
        self._is_ahead = AHEAD in state
        self._resumes = not self._is_ahead and any(name.startswith(LOCAL) for name in state)

    def forget(self) -> None:
        """Marks the weights as those of no round, before a step with gradients."""
        self._last = NO_ROUND
