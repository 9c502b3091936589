"""Weight sync that sends coded differences of the weights: EF21-P.

Gruntkowska, Tyurin and Richtarik, "EF21-P and Friends", ICML 2023. The master has the weights x,
all workers have w, and compute gradients at w. After a step the master sends C(x - w), where C is a
contraction, and all ranks, the master included, add it to w. The error x - w is the only state.
The proof is for SGD without momentum.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange.parameter_server.frames.messages import snapshot_frame
from atomo.exchange.parameter_server.frames.relay import chain_frames
from atomo.exchange.parameter_server.weight_sync.base import CountedStep
from atomo.exchange.parameter_server.weight_sync.differences import (
    DifferenceCoder,
    add_difference,
)
from atomo.exchange.parameter_server.weight_sync.follower_sync import FollowerSync
from atomo.exchange.parameter_server.weight_sync.followers import size
from atomo.fusion import Bucket
from atomo.wire import Bytes, Flag

__all__ = ["DeltaSync"]

SHORTEST: Final = 2  # workers in a chain


@final
class DeltaSync(FollowerSync):
    """Sync that sends differences to followers, and all weights to the other workers.

    Before a checkpoint the master sends all weights to every worker: the evaluated weights are then
    the workers' weights, and a resumed run starts from the same weights.
    """

    def __init__(
        self, buckets: Sequence[Bucket], coder: DifferenceCoder, relays: bool = False
    ) -> None:
        """Starts without followers.

        Args:
            buckets: of the weights, with the codecs of their differences.
            coder: encodes the differences.
            relays: True if workers forward frames, so that the master sends one copy.
        """
        super().__init__(relays)
        self._buckets, self._coder = buckets, coder
        self._target = torch.empty(0)  # x; the weights of the followers are w

    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        self._step, self._target = step, weights
        self._followers.newest = step - 1
        if not len(self._weights):
            self._weights = weights.clone()

    def commands(self, flags: Mapping[int, Flag]) -> list[tuple[int, Bytes]]:
        sent = self._send_chain([*flags])
        for worker, flag in flags.items():
            frames = self._follower_commands(worker, self._missed(worker), flag)
            sent += [(worker, frame) for frame in frames]
        return sent

    def _send_chain(self, workers: Sequence[int]) -> list[tuple[int, Bytes]]:
        """Sends the last difference to the followers that have all earlier differences."""
        chain = [w for w in workers if self._missed(w) and self._followers.versions_missed(w) == 1]
        if not self._relays or len(chain) < SHORTEST:
            return []
        frames = self._followers.last(chain[0]) or []
        for worker in chain:
            self._followers.join(worker)
        return [*chain_frames(self._followers.newest, chain, frames)]

    def commit(self, counted_step: CountedStep) -> None:
        frames = [self._encode_difference(bucket, counted_step.step) for bucket in self._buckets]
        self._snapshot = []
        self._followers.advance(counted_step.step, lambda _: frames, self._weights.nbytes)

    def checkpoint_frames(self, workers: Sequence[int]) -> Mapping[int, list[Bytes]]:
        frames = {
            worker: [*missed, *self._ask(worker)]
            for worker in workers
            if (missed := self._missed(worker)) is not None
        }
        self._weights.copy_(self._target)
        self._snapshot = []
        for worker in workers:
            self._followers.join(worker)
        return {worker: [*frames.get(worker, ()), *self._snapshot_frames()] for worker in workers}

    def _encode_difference(self, bucket: Bucket, version: int) -> Bytes:
        """Returns the difference of one bucket, and adds it to w as the followers do."""
        span = slice(bucket.offset, bucket.offset + bucket.size)
        frame = self._coder.frame(bucket, self._target[span], self._weights[span], version)
        add_difference(bucket, frame, self._weights[span], version - 1)
        return frame

    def _missed(self, worker: int) -> list[Bytes] | None:
        follows = worker in self._followers and not self._hashes.is_unfit(worker)
        missed = self._followers.missed(worker) if follows else None
        if missed is None or self._followers.versions_missed(worker) <= 1:
            return missed
        return None if size(missed) > self._weights.nbytes else missed

    def _snapshot_frames(self) -> list[Bytes]:
        """Returns all weights of the newest version."""
        if not self._snapshot:
            self._snapshot = [snapshot_frame(self._followers.newest, self._weights, {})]
        return self._snapshot
