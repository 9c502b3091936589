"""What all ranks time at once, and agree on: the begin, and the numbers."""

import time
from collections.abc import Callable, Sequence
from typing import Final, final

import numpy as np

from atomo.communicators import Collective
from atomo.errors import FrameError

__all__ = ["Together"]

NUMBER: Final = np.dtype("<f8")


@final
class Together:
    """The ranks of a job, as those who measure see them."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective

    def share(self, numbers: Sequence[float], what: str) -> list[list[float]]:
        """The numbers of every rank, by rank: as many of each.

        Raises:
            FrameError: a rank has another number of them.
        """
        mine = np.frombuffer(np.array([0.0, *numbers], NUMBER).tobytes(), np.uint8)
        found = []
        for rank, data in enumerate(self.collective.gather(mine, what)):
            if data.size != mine.size:
                raise FrameError(
                    f"rank {rank} measured {data.size // NUMBER.itemsize - 1} numbers of {what}, "
                    f"this one {len(numbers)}: do all hosts run the same version?"
                )
            found.append(np.frombuffer(data.tobytes(), NUMBER)[1:].tolist())
        return found

    def told(self, mine: bool) -> bool:
        """Returns what rank 0 says, on all ranks."""
        return bool(self.share([float(mine)], "an answer")[0][0])

    def begin(self) -> None:
        """Returns on all ranks at nearly the same time."""
        self.share([], "the begin of a measurement")

    def slowest_s(self, work: Callable[[], object]) -> float:
        """Seconds until the last rank is done with work that all begin together."""
        self.begin()
        started = time.perf_counter()
        work()
        taken = time.perf_counter() - started
        return max(one for (one,) in self.share([taken], "a time"))
