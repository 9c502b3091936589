"""Shared base of the syncs that send a follower only the steps that it missed.

A follower is a worker that has the weights of some version. The master queries the hashes of the
followers' weights periodically, and sends all weights to a follower with a different hash.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange.parameter_server.frames.messages import begin_frame
from atomo.exchange.parameter_server.weight_sync.base import WeightSync
from atomo.exchange.parameter_server.weight_sync.followers import FollowerLog
from atomo.exchange.parameter_server.weight_sync.weight_hashes import WeightHashes
from atomo.wire import Bytes, Flag

__all__ = ["FollowerSync"]


class FollowerSync(WeightSync):
    """Sync with followers and hashes of their weights. Abstract; subclasses are final."""

    def __init__(self, relays: bool) -> None:
        """Starts without followers.

        Args:
            relays: True if workers forward frames, so that the master sends one copy.
        """
        self.notes = []
        self._relays = relays
        self._followers, self._hashes = FollowerLog(), WeightHashes()
        self._step = 1
        self._weights = torch.empty(0)  # of the followers at the newest version
        self._snapshot: list[Bytes] = []  # of the newest version

    @final
    def initial_query(self, worker: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        self._followers.join(worker)
        return self._hashes.ask(worker, self._followers.newest, weights)

    @final
    def reset_worker(self, worker: int) -> None:
        self._followers.leave(worker)
        self._hashes.cancel(worker)

    @final
    def awaits(self, worker: int) -> bool:
        return self._hashes.awaits(worker)

    @final
    def on_hash(self, worker: int, frame: Bytes) -> None:
        note = self._hashes.difference(worker, frame)
        if note:
            self._followers.leave(worker)
            self.notes.append(note)

    def _follower_commands(
        self, worker: int, missed: Sequence[Bytes] | None, flag: Flag
    ) -> list[Bytes]:
        """Returns the frames after which a worker computes the gradient of the open step.

        Args:
            worker: rank.
            missed: frames of the missed steps; None for a snapshot.
            flag: of the command.
        """
        frames = self._snapshot_frames() if missed is None else missed
        self._followers.join(worker)
        query = self._ask(worker) if self._hashes.due(self._followers.newest) else []
        return [*frames, *query, begin_frame(self._step, flag)]

    def _ask(self, worker: int) -> list[Bytes]:
        return self._hashes.ask(worker, self._followers.newest, self._weights)

    @abstractmethod
    def _snapshot_frames(self) -> list[Bytes]:
        """Returns a snapshot of the newest version."""
