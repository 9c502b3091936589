"""Weight sync that sends the gradient frames of a step, so that workers repeat the step, bit for
bit.

A follower is a worker that has the weights and the optimizer state of some version. It receives the
counted frames of all other workers, in rank order, and the factor on the learning rate; it stored
its own frames. In a new run all workers are followers, as every rank builds the same weights from
the seed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from jaxtyping import Float
from torch import Tensor

from atomo.exchange.parameter_server.frames.messages import (
    snapshot_frame,
    update_frame,
)
from atomo.exchange.parameter_server.frames.relay import chain_frames
from atomo.exchange.parameter_server.weight_sync.base import CountedStep
from atomo.exchange.parameter_server.weight_sync.follower_sync import FollowerSync
from atomo.exchange.parameter_server.weight_sync.followers import StepFrames, size
from atomo.exchange.parameter_server.weight_sync.ski_rental import SkiRental
from atomo.exchange.parameter_server.weight_sync.weights import FullSync
from atomo.wire import Bytes, Flag

__all__ = ["UpdateSync"]

NO_WORKER: Final = 0  # no rank of a worker: the frames of all workers are included
SHORTEST: Final = 3  # workers in a chain; without one, two workers get the same bytes earlier


@final
class UpdateSync(FollowerSync):
    """Sync that sends updates to followers. With `chooses`, a worker follows only while this costs
    fewer bytes than all weights.
    """

    def __init__(
        self,
        state: Callable[[], Mapping[str, Tensor]],
        chooses: bool = False,
        relays: bool = False,
    ) -> None:
        """Starts without followers.

        Args:
            state: returns the state of the master's optimizer, for snapshots.
            chooses: True to send all weights to a worker if they are fewer bytes.
            relays: True if workers forward frames, so that the master sends one copy.
        """
        super().__init__(relays)
        self._state, self._chooses = state, chooses
        self._dense = FullSync(relays)
        self._ski_rentals: dict[int, SkiRental] = {}

    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        self._step, self._weights = step, weights
        self._followers.newest = step - 1
        self._dense.open(step, weights)

    def commands(self, flags: Mapping[int, Flag]) -> list[tuple[int, Bytes]]:
        chain = self._chain([*flags])
        missed = {w: self._last(w) if w in chain else self._missed(w) for w in flags}
        share = size(self._last(NO_WORKER)) // max(
            1, len(chain)
        )  # bytes of the chain for each member
        costs = {w: share if w in chain else self._cost(missed[w]) for w in flags}
        follows = {w: self._follows(w, costs[w], len(flags)) for w in flags}
        dense = {w: flag for w, flag in flags.items() if not follows[w]}
        for worker in dense:
            self._followers.leave(worker)
        sent = self._send_chain([w for w in chain if follows[w]], missed)
        for worker, flag in flags.items():
            if follows[worker]:
                frames = self._follower_commands(worker, missed[worker], flag)
                sent += [(worker, frame) for frame in frames]
        return sent + self._dense.commands(dense)

    def _chain(self, workers: Sequence[int]) -> list[int]:
        """Returns the followers that missed exactly one step; empty if too few for a chain."""
        chain = [
            w for w in workers if w in self._followers and self._followers.versions_missed(w) == 1
        ]
        return chain if self._relays and len(chain) >= SHORTEST else []

    def _send_chain(
        self, chain: Sequence[int], missed: dict[int, list[Bytes] | None]
    ) -> list[tuple[int, Bytes]]:
        """Returns the frames of the last step to the chain, and clears `missed` for its workers."""
        if len(chain) < SHORTEST:
            return []
        missed |= {worker: [] for worker in chain}
        frames = self._last(NO_WORKER)
        return [*chain_frames(self._followers.newest, chain, frames)]

    def _last(self, worker: int) -> list[Bytes]:
        return self._followers.last(worker) or []

    def _cost(self, frames: list[Bytes] | None) -> int:
        return self._snapshot_bytes() if frames is None else size(frames)

    def commit(self, counted_step: CountedStep) -> None:
        self._snapshot = []
        self._followers.advance(
            counted_step.step, step_frames(counted_step), self._snapshot_bytes()
        )

    def checkpoint_frames(self, workers: Sequence[int]) -> Mapping[int, list[Bytes]]:
        missed = {worker: self._missed(worker) for worker in workers}
        for worker, frames in missed.items():
            if frames is not None:
                self._followers.join(worker)
        return {
            worker: [] if frames is None else [*frames, *self._ask(worker)]
            for worker, frames in missed.items()
        }

    def _missed(self, worker: int) -> list[Bytes] | None:
        """Returns the frames of the steps that a follower missed; None if the worker does not
        follow, or if a snapshot has fewer bytes.
        """
        missed = self._followers.missed(worker) if worker in self._followers else None
        if missed is None or size(missed) > self._snapshot_bytes():
            return None
        return missed

    def _follows(self, worker: int, cost: int, receivers: int) -> bool:
        """Returns True if a worker follows from now on; `receivers` workers receive frames now.

        Args:
            worker: its rank.
            cost: bytes of the missed steps of a follower, and of a snapshot for another worker.
            receivers: number of workers that share the cost of forwarding.
        """
        if self._hashes.is_unfit(worker):
            return False
        if not self._chooses:
            return True
        switch_cost = self._snapshot_bytes() - self._weights.nbytes
        dense = self._weights.nbytes // (receivers if self._relays else 1)
        following = worker in self._followers
        if following:
            current_cost, other_cost = cost, dense
        else:
            last = self._last(worker)
            chained = (
                size(self._last(NO_WORKER)) // receivers if receivers >= SHORTEST else size(last)
            )
            current_cost, other_cost = dense, chained if last else dense
        ski_rental = self._ski_rentals.setdefault(worker, SkiRental())
        return ski_rental.should_keep(current_cost, other_cost, switch_cost) == following

    def _snapshot_frames(self) -> list[Bytes]:
        """Returns a snapshot of the newest version."""
        if not self._snapshot:
            version = self._followers.newest
            self._snapshot = [snapshot_frame(version, self._weights, self._state())]
        return self._snapshot

    def _snapshot_bytes(self) -> int:
        """Returns the approximate size of a snapshot."""
        return self._weights.nbytes + sum(tensor.nbytes for tensor in self._state().values())


def step_frames(counted_step: CountedStep) -> StepFrames:
    """Returns a function that gives a worker the frames of one step: the counted frames of the
    other workers, and the UPDATE frame.
    """
    update = update_frame(
        counted_step.step, [*counted_step.counted], counted_step.factor, counted_step.shares
    )

    def frames(worker: int) -> list[Bytes]:
        frames_of_others = [
            frames[bucket]
            for rank, frames in counted_step.counted.items()
            if rank != worker
            for bucket in sorted(frames)
        ]
        return [*frames_of_others, update]

    return frames
