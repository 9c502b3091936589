"""All stages in the first one: where what ranks do together must begin in one order."""

from typing import final

from atomo.integrations.averager import Within
from atomo.integrations.chunk import Chunk
from atomo.integrations.host_averager import HostAverager

__all__ = ["AtOnce"]


@final
class AtOnce:
    """A `HostAverager` of which no two chunks are under way. One would sum inside its host while
    the mean of another is given there, and ranks could begin the two in different orders.
    """

    def __init__(self, stages: HostAverager) -> None:
        self._stages = stages

    def encode(self, chunk: Chunk, scale: float, last: bool, within: Within) -> None:
        """Replaces the gradients by their average."""
        sent = self._stages.exchange(self._stages.encode(chunk, scale, last, within))
        self._stages.decode(sent, last)

    def exchange(self, sent: None) -> None:
        """Is done by then."""

    def decode(self, sent: None, last: bool) -> None:
        """Is done by then."""
