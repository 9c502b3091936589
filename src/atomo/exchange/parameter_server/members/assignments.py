"""Assignment of steps to workers, and the verdict on each worker's last gradient."""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from atomo.errors import FrameFault
from atomo.exchange.parameter_server.gradient_counts import GradientCounters, GradientCounts
from atomo.wire import Flag

__all__ = ["Assignments"]


@final
class Assignments:
    """Steps whose gradients are outstanding, and verdicts on late and refused gradients."""

    def __init__(self) -> None:
        self.outstanding: dict[int, int] = {}
        """Step of the outstanding gradient of each busy worker."""
        self.complete_images: dict[int, int] = {}
        """Images of the complete gradients of the open step, by worker."""
        # Images by worker: of an outstanding gradient, and of a late or refused gradient until its
        # worker has the LATE flag.
        self._assigned_images: dict[int, int] = {}
        self._late_images: dict[int, int] = {}
        self._refused_images: dict[int, int] = {}
        self._newest: tuple[int, dict[int, int]] = 0, {}  # step, and its images by living worker
        self._gradients, self._images = GradientCounters(), GradientCounters()

    def give(self, parts: Mapping[int, int], step: int) -> None:
        """Assigns a step to workers, each with a number of images."""
        self.outstanding |= dict.fromkeys(parts, step)
        self._assigned_images |= parts
        if self._newest[0] != step:
            self._newest = step, {}
        self._newest[1].update(parts)
        self._gradients.add_asked(len(parts))
        self._images.add_asked(sum(parts.values()))

    def move(self, worker: int, step: int, images: int) -> None:
        """Assigns another step to a worker that could not start its step."""
        self._images.add_asked(images - self._assigned_images[worker])
        self.outstanding[worker], self._assigned_images[worker] = step, images
        self._newest[1][worker] = images

    def cancel(self, worker: int) -> None:
        """Withdraws the step of a worker that could not start it."""
        self._newest[1].pop(worker, None)
        self._gradients.add_asked(-1)
        self._images.add_asked(-self._release(worker))

    def complete(self, worker: int) -> None:
        """Marks a worker's gradient as complete in time for its step."""
        self.complete_images[worker] = self._release(worker)

    def complete_late(self, worker: int) -> None:
        """Marks a worker's gradient as complete too late: it counts in no step."""
        self._late_images[worker] = self._release(worker)

    def refuse(self, worker: int) -> None:
        """Marks a worker's gradient, outstanding or complete, as refused: it counts in no step."""
        complete_images = self.complete_images.pop(worker, None)
        self._refused_images[worker] = (
            self._release(worker) if complete_images is None else complete_images
        )

    def verdict(self, worker: int) -> Flag:
        """Returns the flag of the next message to a worker: LATE if its last gradient does not
        count.
        """
        if worker in self._late_images:
            self._gradients.add_late(1)
            self._images.add_late(self._late_images.pop(worker))
        elif worker in self._refused_images:
            self._gradients.add_refused(1)
            self._images.add_refused(self._refused_images.pop(worker))
        else:
            return Flag.NONE
        return Flag.LATE

    def close_step(self, workers: Iterable[int]) -> None:
        """Counts the gradients of these workers as used in the closed step."""
        used = [self.complete_images.pop(worker) for worker in workers]
        self._gradients.add_used(len(used))
        self._images.add_used(sum(used))

    def lose(self, worker: int) -> None:
        """Counts the outstanding, late and refused gradients of a dead worker as lost."""
        if self.outstanding.get(worker) == self._newest[0]:
            self._newest[1].pop(worker, None)
        if worker in self.outstanding:
            self._count_lost(self._release(worker))
        if worker in self._late_images:
            self._count_lost(self._late_images.pop(worker))
        if worker in self._refused_images:
            self._count_lost(self._refused_images.pop(worker))

    def abandon(self, living: Iterable[int]) -> None:
        """Abandons the open step: the living workers take their complete gradients back."""
        survivors = {*living}
        for worker, images in self.complete_images.items():
            if worker in survivors:
                self._late_images[worker] = images
            else:
                self._count_lost(images)
        self.complete_images.clear()

    def gradient_counts(self, refusals: Iterable[tuple[int, FrameFault]] = ()) -> GradientCounts:
        """Returns the counts of gradients since the last call, with these refusals."""
        under_way = len(self._assigned_images) + len(self._late_images) + len(self._refused_images)
        return self._gradients.gradient_counts(under_way, refusals)

    @property
    def counts(self) -> list[tuple[int, ...]]:
        """Counts of gradients and of images since the last balance."""
        return [self._gradients.counts, self._images.counts]

    @property
    def counts_before(self) -> list[tuple[int, ...]]:
        """Counts as of `counts`, without what living workers were asked for in the newest step."""
        open_ = len(self._newest[1]), sum(self._newest[1].values())
        return [
            (asked - more, *others)
            for (asked, *others), more in zip(self.counts, open_, strict=True)
        ]

    def restore(self, counts: Sequence[Sequence[int]]) -> None:
        """Adds the counts of a checkpoint to the next balance."""
        for counters, saved in zip((self._gradients, self._images), counts, strict=False):
            counters.restore(saved)

    def image_counts(self) -> GradientCounts:
        """Returns the counts of images since the last call."""
        unfinished = self._assigned_images, self._late_images, self._refused_images
        return self._images.gradient_counts(sum(sum(images.values()) for images in unfinished))

    def _release(self, worker: int) -> int:
        """Removes the step that a worker owes, and returns its images."""
        del self.outstanding[worker]
        return self._assigned_images.pop(worker)

    def _count_lost(self, images: int) -> None:
        self._gradients.add_lost(1)
        self._images.add_lost(images)
