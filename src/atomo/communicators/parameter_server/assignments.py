"""Which worker computes which step, and what each is told of the gradient before."""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from atomo.communicators.parameter_server.gradient_counts import GradientCounters, GradientCounts
from atomo.errors import FrameFault
from atomo.wire import Flag

__all__ = ["Assignments"]


@final
class Assignments:
    """A worker that was given a step owes its gradient, and whoever was late is told so, once."""

    def __init__(self) -> None:
        self.owed: dict[int, int] = {}
        """By worker, the step whose gradient it owes."""
        self.complete_images: dict[int, int] = {}
        """By worker, the images of the gradients that are in the open step."""
        # By worker, the images of a gradient that is owed, and that came too late, which its worker
        # was not told yet.
        self._asked: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._refused: dict[int, int] = {}  # likewise, for not being what it should
        self._gradients, self._images = GradientCounters(), GradientCounters()

    def give(self, parts: Mapping[int, int], step: int) -> None:
        """These workers compute the gradient of `step` from now on, each of so many images."""
        self.owed |= dict.fromkeys(parts, step)
        self._asked |= parts
        self._gradients.ask(len(parts))
        self._images.ask(sum(parts.values()))

    def move(self, worker: int, step: int, images: int) -> None:
        """It computes the gradient of this step, in place of the one that it could not begin."""
        self._images.ask(images - self._asked[worker])
        self.owed[worker], self._asked[worker] = step, images

    def cancel(self, worker: int) -> None:
        """It could not begin, and owes nothing any more."""
        self._gradients.ask(-1)
        self._images.ask(-self._release(worker))

    def complete(self, worker: int) -> None:
        """Its gradient is here, in time for its step."""
        self.complete_images[worker] = self._release(worker)

    def late(self, worker: int) -> None:
        """Its gradient is here and counts in no step."""
        self._late[worker] = self._release(worker)

    def refuse(self, worker: int) -> None:
        """Its gradient, that it owes or that was complete, is not what it should be, and counts in
        no step.
        """
        whole = self.complete_images.pop(worker, None)
        self._refused[worker] = self._release(worker) if whole is None else whole

    def verdict(self, worker: int) -> Flag:
        """What the next message tells a worker of its last gradient."""
        if worker in self._late:
            self._gradients.late(1)
            self._images.late(self._late.pop(worker))
        elif worker in self._refused:
            self._gradients.refuse(1)
            self._images.refuse(self._refused.pop(worker))
        else:
            return Flag.NONE
        return Flag.LATE

    def use(self, workers: Iterable[int]) -> None:
        """The step that their gradients are in is closed."""
        used = [self.complete_images.pop(worker) for worker in workers]
        self._gradients.use(len(used))
        self._images.use(sum(used))

    def lose(self, worker: int) -> None:
        """A worker is gone, and with it what it owed or had to take back."""
        if worker in self.owed:
            self._count_lost(self._release(worker))
        if worker in self._late:
            self._count_lost(self._late.pop(worker))
        if worker in self._refused:
            self._count_lost(self._refused.pop(worker))

    def abandon(self, living: Iterable[int]) -> None:
        """The open step is never closed: what was complete in it comes back."""
        left = {*living}
        for worker, images in self.complete_images.items():
            if worker in left:
                self._late[worker] = images
            else:
                self._count_lost(images)
        self.complete_images.clear()

    def gradient_counts(self, refusals: Iterable[tuple[int, FrameFault]] = ()) -> GradientCounts:
        """What became of the gradients that were asked for, since this was last asked, and of whom
        frames were refused, and why.
        """
        under_way = len(self._asked) + len(self._late) + len(self._refused)
        return self._gradients.gradient_counts(under_way, refusals)

    @property
    def counts(self) -> list[tuple[int, ...]]:
        """What was counted of gradients and of images, and is in no balance yet."""
        return [self._gradients.counts, self._images.counts]

    def add(self, counts: Sequence[Sequence[int]]) -> None:
        """What `counts` were where the run paused, if any: they are in the next balance."""
        for counters, some in zip((self._gradients, self._images), counts, strict=False):
            counters.add(some)

    def image_counts(self) -> GradientCounts:
        """The same of the images that they are of."""
        known = self._asked, self._late, self._refused
        return self._images.gradient_counts(sum(sum(one.values()) for one in known))

    def _release(self, worker: int) -> int:
        """It owes nothing any more; the images of what it owed."""
        del self.owed[worker]
        return self._asked.pop(worker)

    def _count_lost(self, images: int) -> None:
        self._gradients.lose(1)
        self._images.lose(images)
