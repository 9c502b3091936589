"""The way down that sends coded differences of the weights: EF21-P.

Gruntkowska, Tyurin and Richtarik, "EF21-P and Friends", ICML 2023. The master has the weights x,
all workers have w, and gradients are taken at w. After a step the master sends C(x - w), a
contraction, and everyone, the master too, adds it to w. The error x - w is all the memory there is.
The proof is for SGD without momentum.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.messages import begin_frame, snapshot_frame
from atomo.communicators.parameter_server.relay import chain_frames
from atomo.communicators.parameter_server.weight_sync.base import CountedStep, WeightSync
from atomo.communicators.parameter_server.weight_sync.differences import (
    DifferenceCoder,
    add_difference,
)
from atomo.communicators.parameter_server.weight_sync.followers import FollowerLog, size
from atomo.communicators.parameter_server.weight_sync.weight_hashes import WeightHashes
from atomo.fusion import Bucket
from atomo.wire import Bytes, Flag

__all__ = ["DeltaSync"]

SHORTEST: Final = 2  # workers in a chain


@final
class DeltaSync(WeightSync):
    """Differences to whoever has the weights before; all weights to the others.

    Before a checkpoint all weights go to everyone, so that what is evaluated is what workers have,
    and a run that goes on from there is where this one is.
    """

    def __init__(
        self, buckets: Sequence[Bucket], coder: DifferenceCoder, relays: bool = False
    ) -> None:
        """A way down.

        Args:
            buckets: of the weights, with the codecs of their differences.
            coder: makes the frames.
            relays: whether workers hand them on, so that one copy leaves the master.
        """
        self.notes = []
        self._buckets, self._coder, self._relays = buckets, coder, relays
        self._followers, self._hashes = FollowerLog(), WeightHashes()
        self._step, self._goal = 1, torch.empty(0)
        self._here = torch.empty(0)  # w: what every follower has, or is on its way to
        self._snapshot: list[Bytes] = []  # of the newest version

    def initial_query(self, worker: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        self._followers.join(worker)
        return self._hashes.ask(worker, self._followers.newest, weights)

    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        self._step, self._goal = step, weights
        self._followers.newest = step - 1
        if not len(self._here):
            self._here = weights.clone()

    def commands(self, flags: Mapping[int, Flag]) -> list[tuple[int, Bytes]]:
        sent = self._send_chain([*flags])
        for worker, flag in flags.items():
            sent += [(worker, frame) for frame in self._order(worker, flag)]
        return sent

    def _send_chain(self, workers: Sequence[int]) -> list[tuple[int, Bytes]]:
        """The last difference to those that have all before it; nothing is on their way then."""
        near = [w for w in workers if self._missed(w) and self._followers.behind(w) == 1]
        if not self._relays or len(near) < SHORTEST:
            return []
        frames = self._followers.last(near[0]) or []
        for worker in near:
            self._followers.join(worker)
        return [*chain_frames(self._followers.newest, near, frames)]

    def _order(self, worker: int, flag: Flag) -> list[Bytes]:
        missed = self._missed(worker)
        frames = self._whole() if missed is None else missed
        self._followers.join(worker)
        if self._hashes.due(self._followers.newest):
            frames = [*frames, *self._ask(worker)]
        return [*frames, begin_frame(self._step, flag)]

    def commit(self, taken: CountedStep) -> None:
        frames = [self._move(bucket, taken.step) for bucket in self._buckets]
        self._snapshot = []
        self._followers.advance(taken.step, lambda _: frames, self._here.nbytes)

    def lose(self, worker: int) -> None:
        self._followers.leave(worker)
        self._hashes.lose(worker)

    def settle(self, workers: Sequence[int]) -> Mapping[int, list[Bytes]]:
        frames = {
            worker: [*missed, *self._ask(worker)]
            for worker in workers
            if (missed := self._missed(worker)) is not None
        }
        self._here.copy_(self._goal)
        self._snapshot = []
        for worker in workers:
            self._followers.join(worker)
        return {worker: [*frames.get(worker, ()), *self._whole()] for worker in workers}

    def awaits(self, worker: int) -> bool:
        return self._hashes.awaits(worker)

    def on_hash(self, worker: int, frame: Bytes) -> None:
        note = self._hashes.difference(worker, frame)
        if note:
            self._followers.leave(worker)
            self.notes.append(note)

    def _move(self, bucket: Bucket, version: int) -> Bytes:
        """The difference of one bucket, which is then made here as it will be there."""
        part = slice(bucket.offset, bucket.offset + bucket.size)
        frame = self._coder.frame(bucket, self._goal[part], self._here[part], version)
        add_difference(bucket, frame, self._here[part], version - 1)
        return frame

    def _missed(self, worker: int) -> list[Bytes] | None:
        follows = worker in self._followers and not self._hashes.is_unfit(worker)
        missed = self._followers.missed(worker) if follows else None
        if missed is None or self._followers.behind(worker) <= 1:
            return missed
        return None if size(missed) > self._here.nbytes else missed

    def _ask(self, worker: int) -> list[Bytes]:
        return self._hashes.ask(worker, self._followers.newest, self._here)

    def _whole(self) -> list[Bytes]:
        """All weights of the newest version."""
        if not self._snapshot:
            self._snapshot = [snapshot_frame(self._followers.newest, self._here, {})]
        return self._snapshot
