"""The way down that sends gradients: the frames that counted, unopened, so that workers repeat the
step, bit for bit.

A follower is a worker that has the weights and the optimiser of some version. It gets the frames of
all others that counted, in rank order, and the factor on the learning rate; its own it has kept. A
fresh run begins with followers only, as every rank builds the same weights from the seed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.messages import (
    begin_frame,
    snapshot_frame,
    update_frame,
)
from atomo.communicators.parameter_server.relay import chain_frames
from atomo.communicators.parameter_server.weight_sync.base import CountedStep, WeightSync
from atomo.communicators.parameter_server.weight_sync.followers import FollowerLog, StepFrames, size
from atomo.communicators.parameter_server.weight_sync.ski_rental import SkiRental
from atomo.communicators.parameter_server.weight_sync.weight_hashes import WeightHashes
from atomo.communicators.parameter_server.weight_sync.weights import FullSync
from atomo.wire import Bytes, Flag

__all__ = ["UpdateSync"]

NOBODY: Final = 0  # no worker: of its frames none are left out
SHORTEST: Final = 3  # workers in a chain; two get as many bytes without, and sooner


@final
class UpdateSync(WeightSync):
    """Updates to followers. Where it chooses, each worker follows only while that is less bytes."""

    def __init__(
        self,
        state: Callable[[], Mapping[str, Tensor]],
        chooses: bool = False,
        relays: bool = False,
    ) -> None:
        """A way down.

        Args:
            state: of the master's optimiser; for snapshots.
            chooses: whether workers get all weights instead where that is fewer bytes.
            relays: whether workers hand on what all get, so that one copy leaves the master.
        """
        self.notes = []
        self._state, self._chooses, self._relays = state, chooses, relays
        self._followers, self._hashes, self._dense = FollowerLog(), WeightHashes(), FullSync(relays)
        self._step, self._weights = 1, torch.empty(0)
        self._snapshot: list[Bytes] = []  # of the newest version
        self._ski_rentals: dict[int, SkiRental] = {}

    def initial_query(self, worker: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        self._followers.join(worker)
        return self._hashes.ask(worker, self._followers.newest, weights)

    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        self._step, self._weights = step, weights
        self._followers.newest = step - 1
        self._dense.open(step, weights)

    def commands(self, flags: Mapping[int, Flag]) -> list[tuple[int, Bytes]]:
        chain = self._chain([*flags])
        ways = {w: self._last(w) if w in chain else self._way(w) for w in flags}
        share = size(self._last(NOBODY)) // max(1, len(chain))  # of what all in it get at once
        costs = {w: share if w in chain else self._cost(ways[w]) for w in flags}
        follows = {w: self._follows(w, costs[w], len(flags)) for w in flags}
        dense = {w: flag for w, flag in flags.items() if not follows[w]}
        for worker in dense:
            self._followers.leave(worker)
        sent = self._send_chain([w for w in chain if follows[w]], ways)
        for worker, flag in flags.items():
            if follows[worker]:
                sent += [(worker, one) for one in self._order(worker, ways[worker], flag)]
        return sent + self._dense.commands(dense)

    def _chain(self, workers: Sequence[int]) -> list[int]:
        """Those that have just one step to learn, where so many hand it on."""
        near = [w for w in workers if w in self._followers and self._followers.behind(w) == 1]
        return near if self._relays and len(near) >= SHORTEST else []

    def _send_chain(
        self, chain: Sequence[int], ways: dict[int, list[Bytes] | None]
    ) -> list[tuple[int, Bytes]]:
        """The last step, to all who are near; nothing is left on their way then."""
        if len(chain) < SHORTEST:
            return []
        ways |= {worker: [] for worker in chain}
        frames = self._last(NOBODY)
        return [*chain_frames(self._followers.newest, chain, frames)]

    def _last(self, worker: int) -> list[Bytes]:
        return self._followers.last(worker) or []

    def _cost(self, way: list[Bytes] | None) -> int:
        return self._whole_bytes() if way is None else size(way)

    def _order(self, worker: int, way: list[Bytes] | None, flag: Flag) -> list[Bytes]:
        """What has a follower compute."""
        frames = self._whole() if way is None else way
        self._followers.join(worker)
        if self._hashes.due(self._followers.newest):
            frames = [*frames, *self._ask(worker)]
        return [*frames, begin_frame(self._step, flag)]

    def commit(self, taken: CountedStep) -> None:
        self._snapshot = []
        self._followers.advance(taken.step, entry(taken), self._whole_bytes())

    def lose(self, worker: int) -> None:
        self._followers.leave(worker)
        self._hashes.lose(worker)

    def settle(self, workers: Sequence[int]) -> Mapping[int, list[Bytes]]:
        ways = {worker: self._way(worker) for worker in workers}
        for worker, way in ways.items():
            if way is not None:
                self._followers.join(worker)
        return {
            worker: [] if way is None else [*way, *self._ask(worker)]
            for worker, way in ways.items()
        }

    def awaits(self, worker: int) -> bool:
        return self._hashes.awaits(worker)

    def on_hash(self, worker: int, frame: Bytes) -> None:
        note = self._hashes.difference(worker, frame)
        if note:
            self._followers.leave(worker)
            self.notes.append(note)

    def _ask(self, worker: int) -> list[Bytes]:
        return self._hashes.ask(worker, self._followers.newest, self._weights)

    def _way(self, worker: int) -> list[Bytes] | None:
        """The steps that a follower missed; None: it does not follow, or a snapshot is less."""
        missed = self._followers.missed(worker) if worker in self._followers else None
        if missed is None or size(missed) > self._whole_bytes():
            return None
        return missed

    def _follows(self, worker: int, cost: int, many: int) -> bool:
        """Whether a worker follows from here on, one of `many` that get something now.

        Args:
            worker: its rank.
            cost: of going on, where it does; of a snapshot, where it does not.
            many: among how many the cost of handing on is divided.
        """
        if self._hashes.is_unfit(worker):
            return False
        if not self._chooses:
            return True
        change = self._whole_bytes() - self._weights.nbytes
        dense = self._weights.nbytes // (many if self._relays else 1)
        following = worker in self._followers
        if following:
            here, there = cost, dense
        else:
            last = self._last(worker)
            chained = size(self._last(NOBODY)) // many if many >= SHORTEST else size(last)
            here, there = dense, chained if last else dense
        rent = self._ski_rentals.setdefault(worker, SkiRental())
        return rent.should_keep(here, there, change) == following

    def _whole(self) -> list[Bytes]:
        """A snapshot of the newest version."""
        if not self._snapshot:
            version = self._followers.newest
            self._snapshot = [snapshot_frame(version, self._weights, self._state())]
        return self._snapshot

    def _whole_bytes(self) -> int:
        """About what a snapshot is large."""
        return self._weights.nbytes + sum(tensor.nbytes for tensor in self._state().values())


def entry(taken: CountedStep) -> StepFrames:
    """What leads over a step: the frames of the others that counted, and who all counted."""
    update = update_frame(taken.step, [*taken.counted], taken.factor, taken.shares)

    def frames(worker: int) -> list[Bytes]:
        others = [
            frames[bucket]
            for rank, frames in taken.counted.items()
            if rank != worker
            for bucket in sorted(frames)
        ]
        return [*others, update]

    return frames
