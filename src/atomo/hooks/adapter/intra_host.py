"""The ranks of a host in a job of several: what they sum, and what their first one gives them.

Words and rules are those of `atomo.exchange.collectives.hosts`, with one rail: hooks are handed
other buckets from step to step, and a memory stays where it is.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from atomo.codecs.dense_fallback import DENSE
from atomo.errors import (
    AtomoError,
    CodecError,
    ConfigError,
    DeadlineExpired,
    Diverged,
    FrameError,
    TransportError,
)
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.exchange.collectives.hosts import Hosts

__all__ = ["HookHostGroup", "enter"]

NOTHING: Final = np.zeros(1, np.uint8)  # no message is empty
MADE: Final = (AtomoError, CodecError, ConfigError, DeadlineExpired, Diverged, FrameError)
# By name; not PeerLost, which is made of more than words, and travels as what it is one of.
KINDS: Final[Mapping[str, type[AtomoError]]] = MappingProxyType(
    {kind.__name__: kind for kind in (*MADE, TransportError)}
)


@final
class HookHostGroup:
    """The ranks of this one's host, over a group for the way up and one for the way down.

    Each has one thread: a sum need not wait for the mean of the bucket before.
    """

    def __init__(self, up: Collective, down: Collective, share: float) -> None:
        """Makes a host.

        Args:
            up: its ranks.
            down: the same.
            share: what its sum is multiplied with, so that the mean over hosts is that over ranks.
        """
        self._up, self._down, self._share = up, down, share

    @property
    def in_one_order(self) -> bool:
        """True if only one operation may be under way at a time."""
        return self._up.in_one_order

    @property
    def leads(self) -> bool:
        """True if this rank exchanges with other hosts."""
        return self._up.rank == 0

    def sum(self, flat: Float[Tensor, " n"], what: str) -> None:
        """Replaces `flat` by what this host has to say, as one worker."""
        self._up.sum([Addend(flat, DENSE)], what)
        if self._share != 1:
            flat.mul_(self._share)

    def give(self, mean: Float[Tensor, " n"], what: str) -> None:
        """Replaces `mean` by the first rank's."""
        self._down.broadcast(mean, what)

    def tell(self, wrong: BaseException | None, what: str) -> AtomoError:
        """Sends the error of the first rank to all others, which raise it too."""
        said = NOTHING if wrong is None else np.frombuffer(spelled(wrong).encode(), np.uint8)
        first, *_ = self._down.gather(said, what)  # all are read: a gather has an end
        name, _, message = first.tobytes().decode(errors="replace").partition(": ")
        return KINDS.get(name, AtomoError)(message)


def spelled(wrong: BaseException) -> str:
    """Returns the kind of an error, the nearest of `KINDS`, and its message."""
    kinds = [one.__name__ for one in type(wrong).__mro__ if one in KINDS.values()]
    said = str(wrong) if kinds else repr(wrong)
    return f"{next(iter(kinds), AtomoError.__name__)}: {said}"


def enter(hosts: Hosts, everyone: Collective) -> tuple[HookHostGroup, Collective]:
    """Makes this rank's host, and the collective between hosts; all ranks call it together."""
    beside = hosts.ranks_beside(everyone.rank)
    up, down = (everyone.part(beside, one_host=True) for _ in range(2))
    # Only the first rail is used, but every rank must make as many groups.
    rail = sorted(hosts.rail(up.rank)) if up.rank < hosts.rails else [everyone.rank]
    between = everyone.part(rail, one_host=False)
    return HookHostGroup(up, down, hosts.count / everyone.size), between
