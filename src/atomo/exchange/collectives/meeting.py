"""Meetings of ranks in the store of torch.distributed, before collectives that a rank may miss.

gloo matches collectives by their order alone. A rank that does not come keeps the others waiting
for the deadline of a step, 30 minutes, and nobody says which one it is; a rank that begins another
collective ends them, since gloo aborts a process that receives more bytes than it has room for. In
the store a rank can be waited for by name.
"""

import hashlib
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, final

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store, _get_default_store

from atomo.errors import DeadlineExpired, TransportError

__all__ = ["SOON_S", "Meeting", "meeting_of"]

SOON_S: Final = 60.0  # until a warning names the absent ranks
PREFIX: Final = "atomo/meeting"
ABSENT: Final = "imed out", "imeout"  # in errors of stores about absent keys


@final
class Meeting:
    """One meeting of some ranks. Each rank comes once, and may wait for the other ranks."""

    def __init__(self, store: Store, ranks: Sequence[int], rank: int, name: str) -> None:
        """Makes the next meeting of this name; every rank must make as many.

        Args:
            store: of all ranks.
            ranks: the ranks that meet, by their numbers among all ranks.
            rank: the number of this rank.
            name: names the meeting.
        """
        self._store, self._ranks, self._rank = store, ranks, rank
        group = hashlib.sha1(repr([*ranks]).encode(), usedforsecurity=False).hexdigest()
        key = f"{PREFIX}/{name}/{group}"
        # The store counts, so that no process has a number from before.
        self._name = f"{key}/{store.add(f'{key}/of/{rank}', 1)}"

    def come(self) -> None:
        """Announces in the store that this rank has come."""
        self._store.set(self._key(self._rank), "here")

    def wait(self, limit_s: float, hint: str) -> None:
        """Waits for all ranks. After a minute, a warning names the absent ranks.

        Args:
            limit_s: the longest wait, seconds.
            hint: the question to the user that ends the warning and the error.

        Raises:
            DeadlineExpired: a rank has not come within the limit.
            TransportError: the store is gone.
        """
        soon_s = min(limit_s, SOON_S)
        absent = self._absent(soon_s)
        if absent and soon_s < limit_s:
            warnings.warn(self._message(absent, soon_s, hint), stacklevel=2)
            absent = self._absent(limit_s - soon_s)
        if absent:
            self._store.set(f"{self._name}/ended", str(self._rank))
            raise DeadlineExpired(self._message(absent, limit_s, hint))
        if self._there(f"{self._name}/ended"):
            first = self._store.get(f"{self._name}/ended").decode()
            raise DeadlineExpired(f"rank {first} waited for rank {self._rank}, and has given up")

    def _absent(self, limit_s: float) -> list[int]:
        """Lists the ranks that have not come within a time."""
        keys = {rank: self._key(rank) for rank in self._ranks}
        try:
            self._store.wait([*keys.values()], timedelta(seconds=limit_s))
        except RuntimeError as error:
            if not any(word in str(error) for word in ABSENT):
                raise TransportError(f"torch.distributed lost its store: {error}") from error
            return [rank for rank, key in keys.items() if not self._there(key)]
        return []

    def _there(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _key(self, rank: int) -> str:
        return f"{self._name}/{rank}"

    def _message(self, absent: Sequence[int], waited_s: float, hint: str) -> str:
        names = f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
        return f"rank {self._rank} waited {waited_s:g} s, and {names} did not come: {hint}"


def meeting_of(ranks: Sequence[int], name: str) -> Meeting | None:
    """Makes the next meeting of these ranks; None if there is no store (MPI)."""
    store = _get_default_store()
    return None if store is None else Meeting(store, ranks, dist.get_rank(), name)
