"""The buckets of DistributedDataParallel over a resume.

DDP divides a model into buckets when it wraps it, and once more after the first backward pass of a
process (with `static_graph`: after the second), when it knows in which order gradients are there.
Most codecs see the parameters of a bucket at once, and sums have the bits of the order in which a
process group adds a bucket up. So the first steps of a resumed run are averaged in the buckets of
the run that saved the state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, final

from torch import Tensor

from atomo.errors import CheckpointError
from atomo.hooks.adapter.chunks import Chunk

__all__ = ["BUCKETS", "BucketLayout", "BucketSubmission"]

BUCKETS: Final = "buckets"  # in a state
EARLY: Final = 2  # steps before DDP has its last buckets
Names = tuple[str, ...]


@final
@dataclass(frozen=True)
class BucketSubmission:
    """A chunk for an exchange: what `Exchange.submit` takes."""

    chunk: Chunk
    last: bool
    done: Callable[[], None]


@final
class BucketLayout:
    """The parameters of each bucket of the last step, in the order of the buckets."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Makes the layout of a model that has taken no step.

        Args:
            parameters: those that are averaged, by name.
        """
        self._parameters = parameters
        self._groups: list[Names] = []  # of the last whole step
        self._open: list[Names] = []  # of the step under way
        self._wanted: list[Names] = []  # of the steps to come, where a state says so
        self._early = 0  # how many these are
        self._regrouping: Regrouping | None = None

    def submissions(
        self, chunk: Chunk, last: bool, done: Callable[[], None]
    ) -> Iterator[BucketSubmission]:
        """Yields the chunks to average now that a bucket is complete: most often the bucket itself.

        Args:
            chunk: the gradients in the bucket.
            last: True for the last bucket of the step.
            done: called when all of these gradients are averaged.
        """
        if self._early and self._regrouping is None:
            self._regrouping, self._early = Regrouping(self._wanted), self._early - 1
        if self._regrouping is None:
            yield self._noted(BucketSubmission(chunk, last, done))
        else:
            for one in self._regrouping.add(chunk, done):
                yield self._noted(one)
        if last:
            self._regrouping = None

    def _noted(self, submission: BucketSubmission) -> BucketSubmission:
        self._open.append(tuple(submission.chunk.gradients))
        if submission.last:
            self._groups, self._open = self._open, []
        return submission

    def state_dict(self) -> dict[str, Any]:
        """Returns the buckets of the last step; before the first one, those of the loaded state."""
        return {BUCKETS: [[*names] for names in self._groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has the next steps averaged in the buckets of a state, if it has any of this model.

        Raises:
            CheckpointError: the state has something else in their place.
        """
        groups = as_groups(state.get(BUCKETS, []))
        if self._has(groups):
            self._groups = self._wanted = groups
            self._early = EARLY

    def _has(self, groups: Sequence[Names]) -> bool:
        """True if the groups divide these parameters, and none is of several devices.

        Where the model has changed, no buckets of it have the bits of the run that saved.
        """
        if sorted(name for names in groups for name in names) != sorted(self._parameters):
            return False
        return all(len({self._parameters[n].device for n in names}) == 1 for names in groups)


def as_groups(found: object) -> list[Names]:
    """Reads the buckets in a state. Raises CheckpointError for anything else."""
    if isinstance(found, list) and all(isinstance(names, list | tuple) for names in found):
        return [tuple(map(str, names)) for names in found if names]
    raise CheckpointError(f"the state's {BUCKETS} must be lists of parameters' names, got {found}")


@final
class Regrouping:
    """A step whose gradients come in other groups than those that are averaged together."""

    def __init__(self, groups: Sequence[Names]) -> None:
        """Takes the groups to average, in their order."""
        self._groups = [*groups]
        self._gradients: dict[str, Tensor] = {}  # that belong to no complete group yet
        self._buckets: dict[str, Countdown] = {}  # of each of these
        self._number = 0

    def add(self, chunk: Chunk, done: Callable[[], None]) -> Iterator[BucketSubmission]:
        """Takes a bucket in; the groups that are complete with it."""
        self._gradients |= chunk.gradients
        self._buckets |= dict.fromkeys(chunk.gradients, Countdown(len(chunk.gradients), done))
        while self._groups and all(name in self._gradients for name in self._groups[0]):
            yield self._group(self._groups.pop(0), chunk)

    def _group(self, names: Names, bucket: Chunk) -> BucketSubmission:
        gradients = {name: self._gradients.pop(name) for name in names}
        buckets = [self._buckets.pop(name) for name in names]
        whole = bucket.whole if names == tuple(bucket.gradients) else None
        number, self._number = self._number, self._number + 1

        def done() -> None:
            for one in buckets:
                one.count()

        return BucketSubmission(Chunk(number, gradients, whole), not self._groups, done)


@final
class Countdown:
    """Calls a function once for a number of calls, from any threads."""

    def __init__(self, calls: int, done: Callable[[], None]) -> None:
        self._left, self._done, self._lock = calls, done, Lock()

    def count(self) -> None:
        """Counts one call."""
        with self._lock:
            self._left -= 1
            over = self._left == 0
        if over:
            self._done()
