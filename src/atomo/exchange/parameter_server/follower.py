"""Follower: a worker that repeats the master's steps."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import CheckpointError, FrameError
from atomo.exchange.parameter_server.frames.checks import fits
from atomo.exchange.parameter_server.frames.messages import hash_frame, read_snapshot, read_update
from atomo.exchange.parameter_server.ordered_sum import OrderedSum
from atomo.exchange.parameter_server.weight_sync import Replica, add_difference
from atomo.fusion import Bucket
from atomo.wire import Bytes, Header, Kind

__all__ = ["Follower"]


@final
class Follower:
    """Weights and optimiser of a worker, moved from version to version by the master's frames.

    A frame that does not lead on from the current version is refused, so that no step is taken
    twice or skipped.
    """

    def __init__(
        self,
        weights: Float[Tensor, " n"],
        replica: Callable[[Float[Tensor, " n"]], Replica],
        buckets_at: Callable[[int], Sequence[Bucket]],
        rank: int,
        workers: int,
        share: float | None = None,
        differences: Sequence[Bucket] = (),
    ) -> None:
        """Starts at version 0.

        Args:
            weights: on the CPU; they change in place.
            replica: returns the weights with an optimiser.
            buckets_at: returns the buckets of a step.
            rank: of this worker.
            workers: largest number of workers, spares included.
            share: weight of each gradient in a step; None for 1 / their number.
            differences: buckets of the weights, for syncs that send differences.
        """
        self._weights, self._make = weights, replica
        self._differences, self._moved = differences, 0
        self._buckets_at = buckets_at
        self._rank, self._workers, self._share = rank, workers, share
        self._version: int | None = 0
        self._others: dict[int, dict[int, Bytes]] = {}
        self._own: tuple[int, dict[int, Bytes]] = 0, {}

    @cached_property
    def replica(self) -> Replica:
        """Weights with their optimiser."""
        return self._make(self._weights)

    def prepare(self) -> None:
        """Makes the optimiser now: PyTorch imports a compiler for the first one, which takes
        seconds.
        """
        self.replica.gradient.zero_()

    def keep(self, step: int, bucket: int, frame: Bytes) -> None:
        """Keeps a frame of this worker, which the master does not send back."""
        if self._own[0] != step:
            self._own = step, {}
        self._own[1][bucket] = frame

    def invalidate(self) -> None:
        """Marks the version as unknown: the weights arrived whole, without an optimiser state."""
        self._version = None

    def weights_for(self, step: int) -> Float[Tensor, " n"]:
        """Returns the weights at which the gradient of `step` is computed.

        Raises:
            FrameError: the weights are of another version.
        """
        if self._version != step - 1 or self._others or self._moved:
            raise FrameError(f"step {step} was commanded, and the weights are {self._where()}")
        return self._weights

    def take(self, header: Header, frame: Bytes) -> None:
        """Applies a GRADIENT, UPDATE, DELTA or SNAPSHOT frame of the master.

        Raises:
            FrameError: the frame does not lead on from the current version.
        """
        match header.kind:
            case Kind.GRADIENT:
                self._collect(header, frame)
            case Kind.UPDATE:
                self._update(header.step, frame)
            case Kind.DELTA:
                self._move(header, frame)
            case Kind.SNAPSHOT:
                self._restore(header.step, frame)
            case _:
                raise FrameError(f"a {header.kind.name} leads to no weights")

    def hash(self, version: int) -> Bytes:
        """Returns the answer to the master's query for the hash of the weights.

        Raises:
            FrameError: the query is for another version.
        """
        if self._version != version:
            raise FrameError(
                f"a hash of version {version} was asked for; the weights are {self._where()}"
            )
        return hash_frame(version, self._rank, self._weights)

    def _where(self) -> str:
        version = "of no version" if self._version is None else f"of version {self._version}"
        waiting = f", with gradients of {sorted(self._others)}" if self._others else ""
        return version + waiting + (f", {self._moved} buckets further" if self._moved else "")

    def _collect(self, header: Header, frame: Bytes) -> None:
        """Keeps a gradient until its update arrives."""
        if self._version is None or header.step != self._version + 1:
            raise FrameError(
                f"a gradient of step {header.step} came; the weights are {self._where()}"
            )
        if header.worker == self._rank:
            return  # a chain carries all frames; this worker kept its own
        buckets = self._buckets_at(header.step)
        if not fits(header, buckets):
            raise FrameError(f"bucket {header.bucket} of worker {header.worker}: another layout")
        buckets_of_worker = self._others.setdefault(header.worker, {})
        if buckets_of_worker.setdefault(header.bucket, frame) is not frame:
            raise FrameError(f"bucket {header.bucket} of worker {header.worker} came twice")

    def _update(self, step: int, frame: Bytes) -> None:
        """Takes a step as the master did."""
        if self._version is None or step != self._version + 1:
            raise FrameError(f"an update of step {step} came; the weights are {self._where()}")
        counted, factor, new_shares = read_update(frame, self._workers)
        buckets = self._buckets_at(step)
        arrived = self._arrived(step, counted, len(buckets))
        shares = new_shares or [self._share or 1 / len(counted)]
        total = OrderedSum(buckets, self.replica.gradient, len(counted), shares, trusts=True)
        for bucket in buckets:
            total.advance(bucket, arrived, counted)
        self.replica.step(step, factor)
        self._version, self._others = step, {}

    def _arrived(
        self, step: int, counted: Sequence[int], buckets: int
    ) -> Mapping[int, Mapping[int, Bytes]]:
        """Returns the frames of the gradients in the step, the worker's own included."""
        arrived = dict(self._others)
        if self._rank in counted and self._own[0] == step:
            arrived[self._rank] = self._own[1]
        if sorted(arrived) != [*counted] or any(len(own) != buckets for own in arrived.values()):
            raise FrameError(
                f"an update of step {step} with the gradients of {[*counted]}; there are those of "
                f"{ {rank: len(frames) for rank, frames in sorted(arrived.items())} }, "
                f"of {buckets} buckets each"
            )
        return arrived

    def _move(self, header: Header, frame: Bytes) -> None:
        """Moves one bucket of the weights; after the last bucket they are of the next version."""
        if self._version is None or header.step != self._version + 1:
            raise FrameError(
                f"a difference to version {header.step} came; the weights are {self._where()}"
            )
        if header.bucket != self._moved or header.bucket >= len(self._differences):
            raise FrameError(f"the difference of bucket {header.bucket} came; {self._moved} is due")
        bucket = self._differences[header.bucket]
        if header.layout_hash != bucket.layout_hash:
            raise FrameError(f"the difference of bucket {header.bucket}: another layout")
        part = self._weights[bucket.offset : bucket.offset + bucket.size]
        add_difference(bucket, frame, part, self._version)
        self._moved += 1
        if self._moved == len(self._differences):
            self._version, self._moved = header.step, 0

    def _restore(self, version: int, frame: Bytes) -> None:
        """Restores weights and optimiser from a snapshot."""
        weights, state = read_snapshot(frame, len(self._weights))
        try:
            if state:
                self.replica.load_state_dict(state)
        except CheckpointError as error:
            raise FrameError(f"the master's snapshot of version {version}: {error}") from error
        self._weights.copy_(weights)
        self._version, self._others, self._moved = version, {}, 0
