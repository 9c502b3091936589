"""Measurements that all ranks begin at once, and whose numbers all ranks share."""

import time
from collections.abc import Callable, Sequence
from typing import Final, final

import numpy as np

from atomo.errors import FrameError
from atomo.exchange import Collective

__all__ = ["SynchronizedTimer"]

NUMBER: Final = np.dtype("<f8")


@final
class SynchronizedTimer:
    """The ranks of a job that measure together."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective

    def gather(self, numbers: Sequence[float], what: str) -> list[list[float]]:
        """Gathers the same count of numbers from every rank; returns them by rank.

        Raises:
            FrameError: a rank has another count of numbers.
        """
        # The leading zero keeps the message of no numbers from being empty.
        mine = np.frombuffer(np.array([0.0, *numbers], NUMBER).tobytes(), np.uint8)
        rows = []
        for rank, data in enumerate(self.collective.gather(mine, what)):
            if data.size != mine.size:
                raise FrameError(
                    f"rank {rank} measured {data.size // NUMBER.itemsize - 1} numbers of {what}, "
                    f"this one {len(numbers)}: do all hosts run the same version?"
                )
            rows.append(np.frombuffer(data.tobytes(), NUMBER)[1:].tolist())
        return rows

    def agree(self, mine: bool) -> bool:
        """Returns rank 0's answer on all ranks."""
        return bool(self.gather([float(mine)], "an answer")[0][0])

    def barrier(self) -> None:
        """Waits for all ranks; returns at nearly the same time on each."""
        self.gather([], "the begin of a measurement")

    def slowest_s(self, work: Callable[[], object]) -> float:
        """Returns the seconds until the last rank is done with work that all begin at once."""
        self.barrier()
        started = time.perf_counter()
        work()
        taken = time.perf_counter() - started
        return max(seconds for (seconds,) in self.gather([taken], "a time"))
