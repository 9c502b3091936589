"""Frames that are refused, by whom they came from, and how many in a row."""

from collections import Counter
from collections.abc import Iterable
from typing import final

from atomo.errors import FrameFault

__all__ = ["Strikes"]


@final
class Strikes:
    """A worker has as many strikes as frames of it were refused since a gradient of it was whole
    and sound.
    """

    def __init__(self, most: int) -> None:
        """None yet.

        Args:
            most: at so many in a row a worker is out.
        """
        self.most = most
        self._in_a_row: Counter[int] = Counter()
        self._senders: list[tuple[int, FrameFault]] = []  # since somebody asked

    def strike(self, worker: int, fault: FrameFault) -> int:
        """A frame of a worker was refused; how many that makes in a row."""
        self._in_a_row[worker] += 1
        self._senders.append((worker, fault))
        return self._in_a_row[worker]

    def clear(self, workers: Iterable[int]) -> None:
        """Gradients of these are whole and sound."""
        for worker in workers:
            self._in_a_row.pop(worker, None)

    def has_all(self, workers: Iterable[int]) -> bool:
        """Whether each of these has strikes: then it is hardly their fault."""
        return all(worker in self._in_a_row for worker in workers)

    def take_senders(self) -> list[tuple[int, FrameFault]]:
        """Of whom frames were refused since this was last asked, and why, once for each frame."""
        senders, self._senders = self._senders, []
        return senders
