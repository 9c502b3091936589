"""The buckets of DistributedDataParallel after a resume.

DDP divides a model into buckets when it wraps the model, and again after the first backward pass of
a process (with `static_graph`: after the second), when it knows the order of the gradients. Most
codecs encode the parameters of a bucket together, and the bits of a sum depend on the order in
which a process group adds. So the first steps of a resumed run are averaged in the buckets of the
run that saved the state.
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
    """Chunk for an exchange, with the other arguments of `Exchange.submit`."""

    chunk: Chunk
    last: bool
    done: Callable[[], None]


@final
class BucketLayout:
    """The parameters of each bucket of the last step, in the order of the buckets."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Creates the layout of a model before its first step.

        Args:
            parameters: the averaged parameters, by name.
        """
        self._parameters = parameters
        self._groups: list[Names] = []  # of the last complete step
        self._open: list[Names] = []  # of the current step
        self._restored: list[Names] = []  # of a loaded state, for the next steps
        self._early = 0  # the number of these steps
        self._regrouping: Regrouping | None = None

    def submissions(
        self, chunk: Chunk, last: bool, done: Callable[[], None]
    ) -> Iterator[BucketSubmission]:
        """Yields the chunks to average when a bucket is complete: usually the bucket itself.

        Args:
            chunk: the gradients in the bucket.
            last: True for the last bucket of the step.
            done: called when all these gradients are averaged.
        """
        if self._early and self._regrouping is None:
            self._regrouping, self._early = Regrouping(self._restored), self._early - 1
        if self._regrouping is None:
            yield self._recorded(BucketSubmission(chunk, last, done))
        else:
            for submission in self._regrouping.add(chunk, done):
                yield self._recorded(submission)
        if last:
            self._regrouping = None

    def _recorded(self, submission: BucketSubmission) -> BucketSubmission:
        self._open.append(tuple(submission.chunk.gradients))
        if submission.last:
            self._groups, self._open = self._open, []
        return submission

    def state_dict(self) -> dict[str, Any]:
        """Returns the buckets of the last step; before the first step, those of a loaded state."""
        return {BUCKETS: [[*names] for names in self._groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Uses the buckets of a state for the next steps, if they are buckets of this model.

        Raises:
            CheckpointError: they are no lists of names.
        """
        groups = as_groups(state.get(BUCKETS, []))
        if self._has(groups):
            self._groups = self._restored = groups
            self._early = EARLY

    def _has(self, groups: Sequence[Names]) -> bool:
        """True if the groups contain each parameter once, and each group is on one device.

        If the model has changed, no buckets give the bits of the run that saved the state.
        """
        if sorted(name for names in groups for name in names) != sorted(self._parameters):
            return False
        return all(len({self._parameters[n].device for n in names}) == 1 for names in groups)


def as_groups(entry: object) -> list[Names]:
    """Returns the buckets in a state. Raises CheckpointError for another type."""
    if isinstance(entry, list) and all(isinstance(names, list | tuple) for names in entry):
        return [tuple(map(str, names)) for names in entry if names]
    raise CheckpointError(f"the state's {BUCKETS} must be lists of parameters' names, got {entry}")


@final
class Regrouping:
    """Step in which the buckets of DDP differ from the groups that are averaged."""

    def __init__(self, groups: Sequence[Names]) -> None:
        """Begins a step with these groups, in this order."""
        self._groups = [*groups]
        self._gradients: dict[str, Tensor] = {}  # of incomplete groups
        self._buckets: dict[str, Countdown] = {}  # the bucket of each of them
        self._number = 0

    def add(self, chunk: Chunk, done: Callable[[], None]) -> Iterator[BucketSubmission]:
        """Adds a bucket, and yields the groups that are then complete."""
        self._gradients |= chunk.gradients
        self._buckets |= dict.fromkeys(chunk.gradients, Countdown(len(chunk.gradients), done))
        while self._groups and all(name in self._gradients for name in self._groups[0]):
            yield self._group(self._groups.pop(0), chunk)

    def _group(self, names: Names, chunk: Chunk) -> BucketSubmission:
        gradients = {name: self._gradients.pop(name) for name in names}
        buckets = [self._buckets.pop(name) for name in names]
        whole = chunk.whole if names == tuple(chunk.gradients) else None
        number, self._number = self._number, self._number + 1

        def done() -> None:
            for bucket in buckets:
                bucket.count()

        return BucketSubmission(Chunk(number, gradients, whole), not self._groups, done)


@final
class Countdown:
    """Counter that calls a function after a number of calls, from any thread."""

    def __init__(self, calls: int, done: Callable[[], None]) -> None:
        self._left, self._done, self._lock = calls, done, Lock()

    def count(self) -> None:
        """Counts one call."""
        with self._lock:
            self._left -= 1
            over = self._left == 0
        if over:
            self._done()
