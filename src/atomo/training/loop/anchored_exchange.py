"""Exchanges of a replica with local steps: the mean difference steps the anchor on every rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
import xxhash
from torch import Tensor, nn

from atomo.codecs import Law
from atomo.errors import CheckpointError, Diverged, FrameError
from atomo.exchange import Exchanged, Report, check_images
from atomo.exchange.base import Communicator
from atomo.exchange.outer.anchor import Anchor
from atomo.fusion import Bucket, named_slices
from atomo.memory import NoMemory, kind_of
from atomo.options.outer import parse_outer
from atomo.options.rounds import UNSENT
from atomo.training.checkpoints.schema import LOCAL, OUTER, START, check_tensor
from atomo.training.job.job import Job, floating_buffers
from atomo.training.job.round_plan import Round, RoundResult, correlation
from atomo.training.optim.one_thread import on_one_thread
from atomo.training.optim.round_optimizer import MOMENTUM

__all__ = ["AnchoredExchange", "EndedRound"]

IN_FLIGHT: Final = OUTER + "in_flight/"
ANCHOR: Final = OUTER + "anchor/"
REPORTS: Final = OUTER + "reports"  # a row a rank: its number, and its report of what is in flight


@final
@dataclass(frozen=True)
class EndedRound:
    """A round whose mean was applied."""

    round: Round
    exchanged: Exchanged | None
    """None: the checkpoint that the run continues from has no reports of the exchange."""
    result: RoundResult | None
    """None: another rank writes the records."""


@final
class AnchoredExchange:
    """The anchor of one rank, the same on all ranks, and the exchanges that move it."""

    def __init__(
        self,
        job: Job,
        communicator: Communicator,
        model: nn.Module,
        weights: Tensor,
        *,
        leads: bool,
    ) -> None:
        """Makes an anchor at the present weights.

        Args:
            job: the training run.
            communicator: averages the differences, as it averages gradients in other runs.
            model: the model.
            weights: all its parameters, flat.
            leads: True if this rank writes the figures of rounds.
        """
        self._job, self._communicator, self._leads = job, communicator, leads
        self._parameters = dict(named_slices(weights, job.buckets))
        self._buffers = floating_buffers(model) if job.buffer_buckets else {}
        outer, local = parse_outer(job.settings.outer), job.settings.local
        self.anchor = Anchor(
            self._parameters, self._buffers, outer, late=local.is_late, transform=local.transform
        )
        self._exact = is_exact(job) and outer.averages
        entries = sum(bucket.size for bucket in job.exchanged_at(1))
        self._differences, self._mean, self._previous = (
            torch.zeros(entries, device=weights.device) for _ in range(3)
        )
        self._pending: tuple[Round, Report] | None = None  # an exchange that has yet to begin
        self._report: Report | None = None  # of the exchange that has begun
        self._exchanged: Exchanged | None = None  # of an exchange that ended before its round
        self._in_flight: tuple[Bucket, ...] = ()
        self._among = 0  # as of `begin`

    def begin(self, round_: Round, report: Report, among: int = 0) -> None:
        """Begins the exchange of a round.

        Args:
            round_: the round.
            report: of this rank.
            among: the number of ranks whose differences weigh by their samples; 0: all weigh the
                same.

        Raises:
            Diverged: the weights of this rank are no longer finite.
        """
        self._take_differences(round_)
        self._transform(self._differences, round_)
        self._among = among
        if among:
            self._weigh(round_, among * report.images / self._images(round_))
        self._pending = round_, report
        self.start()

    def turn(self, round_: Round, report: Report) -> list[EndedRound]:
        """Applies the mean of the round before, one round late.

        The exchange of this round begins with the next step, by `start`: between two rounds nothing
        is in flight.

        Returns:
            The rounds whose means were applied: the last round of a phase does not wait for another
            round.

        Raises:
            Diverged: as of `begin`.
        """
        before = self._job.rounds.numbered(round_.number - 1) if self._is_open else None
        exchanged = self._settled(before) if before else None
        self.anchor.set_learning_rate(self._job.rate.at(round_.last))
        means = self._means()
        self._take_differences(round_)
        changes = dict(self._slices(self._differences, self._job.exchanged_at(round_.last)))
        self.anchor.step_late(self._moved(means), changes, exact=self._exact)
        if means and self._buffers:
            self.anchor.take_buffers(means)
        self._transform(self._differences, round_)
        ended = [self._ended(before, exchanged)] if before else []
        self._pending = round_, report
        if round_.ends_phase:
            self.start()
            ended.append(self.finish(round_))
            self.anchor.begin()
        return ended

    def start(self) -> None:
        """Begins the exchange of a round that has ended, if it has not begun."""
        if self._pending is None:
            return
        (round_, self._report), self._pending = self._pending, None
        buckets = self._job.fragment_buckets(round_.last, round_.fragment)
        for bucket in buckets:
            part = slice(bucket.offset, bucket.offset + bucket.size)
            self._previous[part] = self._mean[part]
        self._communicator.begin(round_.number, buckets, self._mean)
        for bucket in buckets:
            part = slice(bucket.offset, bucket.offset + bucket.size)
            self._communicator.push(bucket, self._differences[part])
        self._in_flight = buckets

    def settle(self) -> None:
        """Waits for the mean of a round that has ended or whose exchange has begun, for a
        checkpoint.
        """
        self.start()
        if self._report is not None:
            self._exchanged = self._communicator.average(self._report)
            self._report = None

    def finish(self, round_: Round) -> EndedRound:
        """Ends the exchange of a round: the anchor and the buffers move, and the weights follow."""
        exchanged, means = self._settled(round_), self._means()
        self.anchor.set_learning_rate(self._job.rate.at(round_.last))
        self._take_buffers(means)
        mix = self._job.settings.local.mix
        if round_.ends_phase and mix != UNSENT:
            mix = 0.0
        exact = self._exact and round_.begins == round_.last
        self.anchor.step(self._moved(means), mix, exact=exact)
        return self._ended(round_, exchanged)

    @property
    def _is_open(self) -> bool:
        """True if the mean of a round is not applied yet."""
        return self._pending is not None or bool(self._in_flight)

    def _settled(self, round_: Round) -> Exchanged | None:
        """Waits for the mean of a round; returns its reports."""
        self.settle()
        exchanged, self._exchanged = self._exchanged, None
        if exchanged is not None:
            check_images(exchanged.reports, self._images(round_))
        if exchanged is not None and self._among:
            self._normalise(round_, exchanged)
        return exchanged

    def _images(self, round_: Round) -> int:
        """Returns the samples of all ranks in a round."""
        return self._job.images_of_step * round_.steps

    def _weigh(self, round_: Round, factor: float) -> None:
        """Multiplies the differences of weights by the samples of this rank over those of a rank on
        average. So all weights sum to 1 if each rank takes its part of the round.
        """
        buckets = self._job.fragment_buckets(round_.last, round_.fragment)
        for bucket in self._of_parameters(buckets) if factor != 1.0 else ():
            self._differences[bucket.offset : bucket.offset + bucket.size] *= factor

    def _normalise(self, round_: Round, exchanged: Exchanged) -> None:
        """Makes the weights of the ranks that counted sum to 1, where some did not count."""
        samples = sum(report.images for report in exchanged.reports.values())
        factor = len(exchanged.reports) * self._images(round_) / (samples * self._among)
        for bucket in self._of_parameters(self._in_flight) if factor != 1.0 else ():
            self._mean[bucket.offset : bucket.offset + bucket.size] *= factor

    def _of_parameters(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Returns the buckets of parameters: those of buffers have the mean over ranks."""
        return [bucket for bucket in buckets if bucket.number < len(self._job.buckets)]

    def _means(self) -> dict[str, Tensor]:
        """Returns the means of what was in flight, of parameters and buffers."""
        return dict(self._slices(self._mean, self._in_flight))

    def _moved(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the mean differences of parameters."""
        own = {name: mean for name, mean in means.items() if name in self._parameters}
        return self.anchor.entries(own)

    def _transform(self, differences: Tensor, round_: Round) -> None:
        """Transforms differences in place, if coefficients are exchanged."""
        buckets = self._job.fragment_buckets(round_.last, round_.fragment)
        for name, view in self._slices(differences, buckets):
            if name in self._parameters:
                view.copy_(self.anchor.coefficients(view))

    def _take_differences(self, round_: Round) -> None:
        """Copies the differences of a round, and the buffers.

        Raises:
            Diverged: the weights of this rank are no longer finite.
        """
        buckets = self._job.fragment_buckets(round_.last, round_.fragment)
        for name, view in self._slices(self._differences, buckets):
            is_parameter = name in self._parameters
            view.copy_(self.anchor.difference(name) if is_parameter else self._buffers[name])
            if not bool(view.isfinite().all()):
                raise Diverged(f"{name} is no longer finite after step {round_.begins}")

    def _ended(self, round_: Round, exchanged: Exchanged | None) -> EndedRound:
        """Forgets what was in flight; returns the figures of its round."""
        result = self._result(round_) if self._leads else None
        self._in_flight = ()
        return EndedRound(round_, exchanged, result)

    def _result(self, round_: Round) -> RoundResult:
        """Returns the figures of a round whose mean has just been applied."""
        own = self._of_parameters(self._in_flight)
        parts = [slice(bucket.offset, bucket.offset + bucket.size) for bucket in own]
        with on_one_thread():
            similar = correlation([(self._mean[part], self._previous[part]) for part in parts])
        rate = self.anchor.effective_rate(similar or 0.0)
        return RoundResult(round_.number, round_.steps, similar, rate)

    def _take_buffers(self, means: Mapping[str, Tensor]) -> None:
        """Gives the model the mean of the buffers."""
        for name, buffer in self._buffers.items():
            buffer.copy_(means[name])
        self.anchor.keep_buffers()

    def _slices(self, flat: Tensor, buckets: Sequence[Bucket]) -> Iterator[tuple[str, Tensor]]:
        return named_slices(flat, buckets)

    def flat_anchor(self) -> Tensor:
        """Returns a copy of the weights of the anchor, in the order of all parameters."""
        weights = [self.anchor.weights[name].flatten() for name in self._parameters]
        return torch.cat(weights)

    def digest(self) -> Tensor:
        """Returns a hash of the anchor, 16 bytes."""
        whole = xxhash.xxh3_128()
        for tensor in self.anchor.weights.values():
            whole.update(tensor.cpu().numpy().data)
        return torch.frombuffer(bytearray(whole.digest()), dtype=torch.uint8)

    @property
    def keeps_unsent(self) -> bool:
        """True if replicas keep their own weights where nothing was sent: the anchor then has
        entries of earlier rounds, and a checkpoint has the mean of the replicas as its model.
        """
        return self._job.settings.local.mix == UNSENT

    def model_state(
        self, model: nn.Module, states: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Returns the anchor and the averaged buffers under the names of the model.

        Args:
            model: the model.
            states: the states of all ranks, of which a checkpoint has the mean with `keeps_unsent`.
        """
        with self.anchor.in_model():
            anchor = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if not self.keeps_unsent or not states:
            return anchor
        means = {n: torch.stack([s[LOCAL + n] for s in states]).mean(0) for n in self._parameters}
        return anchor | means

    def state_dict(self, *, wishes: bool = False) -> dict[str, Tensor]:
        """Returns the state that all ranks share, without the anchor's weights.

        Args:
            wishes: True to keep the wishes in reports of what is in flight, for a rank that joins.
        """
        own = self.anchor.state_dict()
        state = {MOMENTUM + name: tensor for name, tensor in own["momentum"].items()}
        if self.keeps_unsent:
            state |= {ANCHOR + name: tensor for name, tensor in own["weights"].items()}
        means = named_slices(self._mean, self._in_flight)
        state |= {IN_FLIGHT + name: mean.clone() for name, mean in means}
        return state | reports_state(self._exchanged, wishes=wishes)

    def own_state(self) -> dict[str, Tensor]:
        """Returns the state of this rank in the middle of a round."""
        return {START + name: tensor.clone() for name, tensor in self.anchor.starts.items()}

    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `own_state`; other entries are ignored."""
        for name, tensor in self.anchor.starts.items():
            if START + name in state:
                tensor.copy_(state[START + name])

    def load_state_dict(self, state: Mapping[str, Tensor], round_: Round) -> None:
        """Restores the result of `state_dict`.

        Args:
            state: may have other entries, which are ignored, and may lack all of these.
            round_: the round of the next step.

        Raises:
            CheckpointError: the state is of another model.
        """
        parts = {"momentum": under(MOMENTUM, state), "weights": under(ANCHOR, state)}
        if any(parts.values()):
            saved = {part: tensors for part, tensors in parts.items() if tensors}
            self.anchor.load_state_dict(self.anchor.state_dict() | saved)
        means = under(IN_FLIGHT, state)
        if not means:
            return
        self._in_flight = self._job.fragment_buckets(round_.last, round_.fragment)
        for name, view in self._slices(self._mean, self._in_flight):
            if name not in means:
                raise CheckpointError(f"the checkpoint has no mean of {name} in flight")
            check_tensor(IN_FLIGHT + name, means[name], view)
            view.copy_(means[name])
        self._exchanged = exchanged_in(state)


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the part of a state under a prefix, without the prefix."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def reports_state(exchanged: Exchanged | None, *, wishes: bool) -> dict[str, Tensor]:
    """Returns the reports of what is in flight as one tensor; empty if there are none."""
    if exchanged is None:
        return {}
    rows = []
    for rank, report in exchanged.reports.items():
        kept = report if wishes else replace(report, ending=0.0, saving=0.0)
        rows.append(torch.cat([torch.tensor([float(rank)], dtype=torch.float64), kept.tensor()]))
    return {REPORTS: torch.stack(rows)}


def exchanged_in(state: Mapping[str, Tensor]) -> Exchanged | None:
    """Returns the reports of what is in flight; None: the state has none.

    Raises:
        CheckpointError: they are damaged.
    """
    rows = state.get(REPORTS)
    if rows is None:
        return None
    try:
        reports = {int(row[0]): Report.of(row[1:]) for row in rows.double()}
    except (FrameError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint has damaged {REPORTS!r}: {error}") from error
    return Exchanged(reports, 0.0, 0.0, 0.0)


def is_exact(job: Job) -> bool:
    """Returns True if one rank trains alone, and its codec and its memory lose nothing."""
    lossless = all(Law.LOSSLESS in codec.laws for codec in job.settings.codecs)
    by_frames = job.settings.comm_type in ("Allgather", "Allreduce")
    local = job.settings.local
    plain = local.transform == "none" and local.mix != UNSENT
    alone = job.workers == 1 and by_frames and plain
    return alone and lossless and kind_of(job.settings.memory) is NoMemory
