"""Exchanges of a replica with local steps: the mean difference steps the anchor on every rank."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

import torch
import xxhash
from torch import Tensor, nn

from atomo.codecs import Law
from atomo.errors import CheckpointError, Diverged
from atomo.exchange import Exchanged, Report, check_images
from atomo.exchange.base import Communicator
from atomo.exchange.outer.anchor import Anchor
from atomo.fusion import Bucket, named_slices
from atomo.memory import NoMemory, kind_of
from atomo.options.outer import outer_sgd
from atomo.training.checkpoints.schema import OUTER, check_tensor
from atomo.training.job.job import Job, floating_buffers
from atomo.training.job.round_plan import Round, RoundResult, correlation
from atomo.training.optim.one_thread import on_one_thread
from atomo.training.optim.round_optimizer import MOMENTUM

__all__ = ["AnchoredExchange"]

IN_FLIGHT: Final = OUTER + "in_flight/"


@final
class AnchoredExchange:
    """The anchor of one rank, the same on all ranks, and the exchanges that move it."""

    def __init__(
        self, job: Job, communicator: Communicator, model: nn.Module, weights: Tensor
    ) -> None:
        """Makes an anchor at the present weights.

        Args:
            job: the training run.
            communicator: averages the differences, as it averages gradients in other runs.
            model: the model.
            weights: all its parameters, flat.
        """
        self._job, self._communicator = job, communicator
        self._parameters = dict(named_slices(weights, job.buckets))
        self._buffers = floating_buffers(model) if job.buffer_buckets else {}
        self.outer = outer_sgd(job.settings.outer)
        self.anchor = Anchor(self._parameters, self._buffers, self.outer)
        self._exact = is_exact(job) and self.outer.averages
        entries = sum(bucket.size for bucket in job.exchanged_at(1))
        self._differences, self._mean, self._previous = (
            torch.zeros(entries, device=weights.device) for _ in range(3)
        )
        self._report: Report | None = None  # of the exchange that has begun
        self._exchanged: Exchanged | None = None  # of an exchange that ended before its round
        self._in_flight: tuple[Bucket, ...] = ()

    def begin(self, round_: Round, report: Report) -> None:
        """Begins the exchange of a round.

        Raises:
            Diverged: the weights of this rank are no longer finite.
        """
        buckets = self._job.fragment_buckets(round_.last, round_.fragment)
        for name, view in self._slices(self._differences, buckets):
            is_parameter = name in self._parameters
            view.copy_(self.anchor.difference(name) if is_parameter else self._buffers[name])
            if not bool(view.isfinite().all()):
                raise Diverged(f"{name} is no longer finite after step {round_.begins}")
        for bucket in buckets:
            part = slice(bucket.offset, bucket.offset + bucket.size)
            self._previous[part] = self._mean[part]
        self._communicator.begin(round_.number, buckets, self._mean)
        for bucket in buckets:
            part = slice(bucket.offset, bucket.offset + bucket.size)
            self._communicator.push(bucket, self._differences[part])
        self._report, self._in_flight = report, buckets

    def settle(self) -> None:
        """Waits for the mean of an exchange that has begun, for a checkpoint."""
        if self._report is not None:
            self._exchanged = self._communicator.average(self._report)
            self._report = None

    def finish(self, round_: Round) -> Exchanged | None:
        """Ends the exchange of a round: the anchor and the buffers move, and the weights follow.

        Returns:
            The reports; None: the exchange ended before the checkpoint that the run continues from.
        """
        self.settle()
        exchanged, self._exchanged = self._exchanged, None
        if exchanged is not None:
            check_images(exchanged.reports, self._job.images_of_step * round_.steps)
        means = dict(self._slices(self._mean, self._in_flight))
        self._take_buffers(means)
        mix = 0.0 if round_.ends_phase else self._job.settings.mix
        exact = self._exact and round_.begins == round_.last
        moved = {name: mean for name, mean in means.items() if name in self._parameters}
        self.anchor.step(moved, mix, exact=exact)
        return exchanged

    def result(self, round_: Round) -> RoundResult:
        """Returns the figures of the round that has just finished."""
        own = [bucket for bucket in self._in_flight if bucket.number < len(self._job.buckets)]
        parts = [slice(bucket.offset, bucket.offset + bucket.size) for bucket in own]
        with on_one_thread():
            similar = correlation([(self._mean[part], self._previous[part]) for part in parts])
        rate = self.outer.effective_rate(similar or 0.0)
        return RoundResult(round_.number, round_.steps, similar, rate)

    def clear(self) -> None:
        """Forgets the finished exchange."""
        self._in_flight = ()

    def _take_buffers(self, means: Mapping[str, Tensor]) -> None:
        """Gives the model the mean of the buffers."""
        for name, buffer in self._buffers.items():
            buffer.copy_(means[name])
        self.anchor.keep_buffers()

    def _slices(self, flat: Tensor, buckets: Sequence[Bucket]) -> Iterator[tuple[str, Tensor]]:
        return named_slices(flat, buckets)

    def digest(self) -> Tensor:
        """Returns a hash of the anchor, 16 bytes."""
        whole = xxhash.xxh3_128()
        for tensor in self.anchor.weights.values():
            whole.update(tensor.cpu().numpy().data)
        return torch.frombuffer(bytearray(whole.digest()), dtype=torch.uint8)

    def model_state(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns the anchor and the averaged buffers under the names of the model."""
        with self.anchor.in_model():
            return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state that all ranks share, without the anchor's weights."""
        momentum = self.anchor.state_dict()["momentum"]
        state = {MOMENTUM + name: tensor for name, tensor in momentum.items()}
        means = named_slices(self._mean, self._in_flight)
        return state | {IN_FLIGHT + name: mean.clone() for name, mean in means}

    def load_state_dict(self, state: Mapping[str, Tensor], round_: Round) -> None:
        """Restores the result of `state_dict`.

        Args:
            state: may have other entries, which are ignored, and may lack all of these.
            round_: the round of the next step.

        Raises:
            CheckpointError: the state is of another model.
        """
        momentum = under(MOMENTUM, state)
        if momentum:
            own = self.anchor.state_dict()
            self.anchor.load_state_dict(own | {"momentum": momentum})
        means = under(IN_FLIGHT, state)
        if not means:
            return
        self._in_flight = self._job.fragment_buckets(round_.last, round_.fragment)
        for name, view in self._slices(self._mean, self._in_flight):
            if name not in means:
                raise CheckpointError(f"the checkpoint has no mean of {name} in flight")
            check_tensor(IN_FLIGHT + name, means[name], view)
            view.copy_(means[name])


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the part of a state under a prefix, without the prefix."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def is_exact(job: Job) -> bool:
    """Returns True if one rank trains alone, and its codec and its memory lose nothing."""
    lossless = all(Law.LOSSLESS in codec.laws for codec in job.settings.codecs)
    by_frames = job.settings.comm_type in ("Allgather", "Allreduce")
    alone = job.workers == 1 and by_frames
    return alone and lossless and kind_of(job.settings.memory) is NoMemory
