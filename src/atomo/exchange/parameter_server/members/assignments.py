"""Assignment of steps to workers, and the verdict on each worker's last gradient."""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from atomo.errors import FrameFault
from atomo.exchange.parameter_server.gradient_counts import GradientCounters, GradientCounts
from atomo.wire import Flag

__all__ = ["Assignments"]


@final
class Assignments:
    """Steps that workers owe a gradient of. A worker is told once that its gradient was late."""

    def __init__(self) -> None:
        self.owed: dict[int, int] = {}
        """Step whose gradient a worker owes, by worker."""
        self.complete_images: dict[int, int] = {}
        """Images of the complete gradients of the open step, by worker."""
        # Images by worker: of an owed gradient, and of a late or refused one until its worker is
        # told.
        self._asked: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._refused: dict[int, int] = {}
        self._gradients, self._images = GradientCounters(), GradientCounters()

    def give(self, parts: Mapping[int, int], step: int) -> None:
        """Assigns a step to workers, each with a number of images."""
        self.owed |= dict.fromkeys(parts, step)
        self._asked |= parts
        self._gradients.add_asked(len(parts))
        self._images.add_asked(sum(parts.values()))

    def move(self, worker: int, step: int, images: int) -> None:
        """Assigns another step to a worker that could not start its step."""
        self._images.add_asked(images - self._asked[worker])
        self.owed[worker], self._asked[worker] = step, images

    def cancel(self, worker: int) -> None:
        """Takes back the step of a worker that could not start it."""
        self._gradients.add_asked(-1)
        self._images.add_asked(-self._release(worker))

    def complete(self, worker: int) -> None:
        """Marks a worker's gradient as complete in time for its step."""
        self.complete_images[worker] = self._release(worker)

    def complete_late(self, worker: int) -> None:
        """Marks a worker's gradient as complete too late: it counts in no step."""
        self._late[worker] = self._release(worker)

    def refuse(self, worker: int) -> None:
        """Marks a worker's gradient, owed or complete, as refused: it counts in no step."""
        whole = self.complete_images.pop(worker, None)
        self._refused[worker] = self._release(worker) if whole is None else whole

    def verdict(self, worker: int) -> Flag:
        """Returns the flag of the next message to a worker: LATE if its last gradient does not
        count.
        """
        if worker in self._late:
            self._gradients.add_late(1)
            self._images.add_late(self._late.pop(worker))
        elif worker in self._refused:
            self._gradients.add_refused(1)
            self._images.add_refused(self._refused.pop(worker))
        else:
            return Flag.NONE
        return Flag.LATE

    def close_step(self, workers: Iterable[int]) -> None:
        """Counts the gradients of these workers as used in the closed step."""
        used = [self.complete_images.pop(worker) for worker in workers]
        self._gradients.add_used(len(used))
        self._images.add_used(sum(used))

    def lose(self, worker: int) -> None:
        """Counts the gradients of a dead worker that it owed or had to take back as lost."""
        if worker in self.owed:
            self._count_lost(self._release(worker))
        if worker in self._late:
            self._count_lost(self._late.pop(worker))
        if worker in self._refused:
            self._count_lost(self._refused.pop(worker))

    def abandon(self, living: Iterable[int]) -> None:
        """Gives up the open step: its complete gradients go back to the living workers."""
        left = {*living}
        for worker, images in self.complete_images.items():
            if worker in left:
                self._late[worker] = images
            else:
                self._count_lost(images)
        self.complete_images.clear()

    def gradient_counts(self, refusals: Iterable[tuple[int, FrameFault]] = ()) -> GradientCounts:
        """Returns the counts of gradients since the last call, with these refusals."""
        under_way = len(self._asked) + len(self._late) + len(self._refused)
        return self._gradients.gradient_counts(under_way, refusals)

    @property
    def counts(self) -> list[tuple[int, ...]]:
        """Counts of gradients and of images since the last balance."""
        return [self._gradients.counts, self._images.counts]

    def restore(self, counts: Sequence[Sequence[int]]) -> None:
        """Adds the counts of a checkpoint to the next balance."""
        for counters, saved in zip((self._gradients, self._images), counts, strict=False):
            counters.restore(saved)

    def image_counts(self) -> GradientCounts:
        """Returns the counts of images since the last call."""
        known = self._asked, self._late, self._refused
        return self._images.gradient_counts(sum(sum(images.values()) for images in known))

    def _release(self, worker: int) -> int:
        """Removes the step that a worker owes, and returns its images."""
        del self.owed[worker]
        return self._asked.pop(worker)

    def _count_lost(self, images: int) -> None:
        self._gradients.add_lost(1)
        self._images.add_lost(images)
