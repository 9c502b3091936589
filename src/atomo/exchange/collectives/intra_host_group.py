"""The ranks of one host, which count as one worker: dense sums, and copies of means."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from atomo.errors import (
    AtomoError,
    CodecError,
    ConfigError,
    DeadlineExpired,
    Diverged,
    FrameError,
    TransportError,
)
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.hosts import Hosts

__all__ = ["IntraHostGroup", "join_host", "split_hosts"]

NO_ERROR: Final = np.zeros(1, np.uint8)  # no message is empty
SENT_BY_NAME: Final = (
    AtomoError,
    CodecError,
    ConfigError,
    DeadlineExpired,
    Diverged,
    FrameError,
    TransportError,
)
# Kinds that a message alone makes. PeerLost has a rank too, and travels as a TransportError.
KINDS: Final[Mapping[str, type[AtomoError]]] = MappingProxyType(
    {kind.__name__: kind for kind in SENT_BY_NAME}
)


@final
class IntraHostGroup:
    """The ranks of a host, over one collective for sums and another one for means.

    Each collective has a thread: a sum does not wait for the mean of the bucket before. A root
    other than rank 0 needs collectives in which a rank sends without waiting, since ranks may then
    begin the broadcasts of several roots in different orders.
    """

    def __init__(self, up: Collective, down: Collective, share: float) -> None:
        """Makes a group.

        Args:
            up: the ranks, for sums.
            down: the same ranks, for means.
            share: the factor on a sum that makes the mean over hosts the mean over ranks.
        """
        self._up, self._down, self._share = up, down, share

    @property
    def rank(self) -> int:
        """The number of this rank in the host."""
        return self._up.rank

    @property
    def leads(self) -> bool:
        """True if this rank is the first of the host."""
        return self._up.rank == 0

    @property
    def in_one_order(self) -> bool:
        """True if only one operation may be under way at a time."""
        return self._up.in_one_order

    @property
    def wait_s(self) -> float:
        """Seconds spent on waiting for other ranks of the host so far."""
        return self._up.wait_s + self._down.wait_s

    def reduce(self, flat: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        """Replaces `flat` of rank `root` by the gradient of the host as one worker.

        Raises:
            FrameError, TransportError: another rank sent something else, or nothing.
        """
        self._up.reduce(flat, label, root)
        if self._share != 1 and self.rank == root:
            flat.mul_(self._share)

    def broadcast(self, mean: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        """Replaces `mean` by that of rank `root`, bit for bit. Errors: those of `reduce`."""
        self._down.broadcast(mean, label, root)

    def broadcast_error(self, error: BaseException | None, label: str) -> AtomoError:
        """Returns the error of the first rank, which sends it to all others."""
        data = NO_ERROR if error is None else np.frombuffer(spelled(error).encode(), np.uint8)
        first, *_ = self._down.gather(data, label)  # all are read: a gather has an end
        name, _, message = first.tobytes().decode(errors="replace").partition(": ")
        return KINDS.get(name, AtomoError)(message)


def spelled(error: BaseException) -> str:
    """Returns the kind of an error, the nearest of `KINDS`, and its message."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind in KINDS.values()]
    message = str(error) if kinds else repr(error)
    return f"{next(iter(kinds), AtomoError.__name__)}: {message}"


def join_host(hosts: Hosts, everyone: Collective) -> IntraHostGroup:
    """Makes the group of this rank's host; all ranks call it together."""
    beside = hosts.ranks_beside(everyone.rank)
    up, down = (everyone.split(beside, one_host=True) for _ in range(2))
    return IntraHostGroup(up, down, hosts.count / everyone.size)


def split_hosts(hosts: Hosts, everyone: Collective) -> tuple[IntraHostGroup, Collective]:
    """Makes the group of this rank's host, and the collective of the first ranks of all hosts.

    All ranks call it together.
    """
    inside = join_host(hosts, everyone)
    # Only the first rail is used, but every rank must make as many groups.
    rail = sorted(hosts.rail(inside.rank)) if inside.rank < hosts.rails else [everyone.rank]
    return inside, everyone.split(rail, one_host=False)
