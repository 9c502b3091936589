"""Measurements that all ranks begin together, with numbers that all ranks share."""

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

    def gather(self, numbers: Sequence[float], label: str) -> list[list[float]]:
        """Gathers the same count of numbers from every rank; returns them by rank.

        Raises:
            FrameError: a rank has another count of numbers.
        """
        # The leading zero makes the message of an empty list valid: no message may be empty.
        own = np.frombuffer(np.array([0.0, *numbers], NUMBER).tobytes(), np.uint8)
        rows = []
        for rank, data in enumerate(self.collective.gather(own, label)):
            if data.size != own.size:
                raise FrameError(
                    f"rank {rank} measured {data.size // NUMBER.itemsize - 1} numbers of {label}, "
                    f"this one {len(numbers)}: do all hosts run the same version?"
                )
            rows.append(np.frombuffer(data.tobytes(), NUMBER)[1:].tolist())
        return rows

    def agree(self, own: bool) -> bool:
        """Returns rank 0's answer on all ranks."""
        return bool(self.gather([float(own)], "an answer")[0][0])

    def barrier(self) -> None:
        """Waits for all ranks; returns at nearly the same time on each."""
        self.gather([], "the begin of a measurement")

    def slowest_s(self, work: Callable[[], object]) -> float:
        """Returns the seconds until the last rank has finished `work`, which all begin together."""
        self.barrier()
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        return max(seconds for (seconds,) in self.gather([seconds], "a time"))
