"""Follower: a worker's copy of weights and optimizer, on which it repeats the master's steps."""

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
    """Weights and optimizer of a worker, updated from version to version by the master's frames.

    A frame that does not start at the current version is refused, so that no step is applied twice
    or skipped.
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
            weights: flat weights on the CPU, updated in place.
            replica: returns a replica of these weights with an optimizer.
            buckets_at: returns the buckets of a step.
            rank: of this worker.
            workers: largest number of workers, spares included.
            share: weight of each gradient in a step; None for 1 / the number of gradients.
            differences: buckets of the weights, for syncs that send differences.
        """
        self._weights, self._make_replica = weights, replica
        self._differences, self._buckets_applied = differences, 0
        self._buckets_at = buckets_at
        self._rank, self._workers, self._share = rank, workers, share
        self._version: int | None = 0
        self._received: dict[int, dict[int, Bytes]] = {}
        self._sent: tuple[int, dict[int, Bytes]] = 0, {}

    @cached_property
    def replica(self) -> Replica:
        """Weights with their optimizer."""
        return self._make_replica(self._weights)

    def prepare(self) -> None:
        """Creates the optimizer now: PyTorch imports a compiler with the first optimizer, which
        takes seconds.
        """
        self.replica.gradient.zero_()

    def record_sent(self, step: int, bucket: int, frame: Bytes) -> None:
        """Stores a frame that this worker sent: the master does not send it back."""
        if self._sent[0] != step:
            self._sent = step, {}
        self._sent[1][bucket] = frame

    def invalidate(self) -> None:
        """Marks the version as unknown: all weights arrived, without a state of the optimizer."""
        self._version = None

    def weights_for(self, step: int) -> Float[Tensor, " n"]:
        """Returns the weights at which the gradient of `step` is computed.

        Raises:
            FrameError: the weights are of another version.
        """
        if self._version != step - 1 or self._received or self._buckets_applied:
            raise FrameError(f"step {step} was commanded, and the weights are {self._state_text()}")
        return self._weights

    def apply(self, header: Header, frame: Bytes) -> None:
        """Applies a GRADIENT, UPDATE, DELTA or SNAPSHOT frame of the master.

        Raises:
            FrameError: the frame does not start at the current version.
        """
        match header.kind:
            case Kind.GRADIENT:
                self._store_gradient(header, frame)
            case Kind.UPDATE:
                self._repeat_step(header.step, frame)
            case Kind.DELTA:
                self._apply_difference(header, frame)
            case Kind.SNAPSHOT:
                self._restore_snapshot(header.step, frame)
            case _:
                raise FrameError(f"a {header.kind.name} is no frame of the weight sync")

    def hash(self, version: int) -> Bytes:
        """Returns the answer to the master's query for the hash of the weights.

        Raises:
            FrameError: the query is for another version.
        """
        if self._version != version:
            raise FrameError(
                f"a hash of version {version} was asked for; the weights are {self._state_text()}"
            )
        return hash_frame(version, self._rank, self._weights)

    def _state_text(self) -> str:
        """Describes the version of the weights for errors."""
        version = "of no version" if self._version is None else f"of version {self._version}"
        gradients = f", with gradients of {sorted(self._received)}" if self._received else ""
        applied = f", {self._buckets_applied} buckets further" if self._buckets_applied else ""
        return version + gradients + applied

    def _store_gradient(self, header: Header, frame: Bytes) -> None:
        """Stores a gradient until the UPDATE frame of its step arrives."""
        if self._version is None or header.step != self._version + 1:
            raise FrameError(
                f"a gradient of step {header.step} came; the weights are {self._state_text()}"
            )
        if header.worker == self._rank:
            return  # a chain carries the frames of all workers; this worker stored its own
        buckets = self._buckets_at(header.step)
        if not fits(header, buckets):
            raise FrameError(f"bucket {header.bucket} of worker {header.worker}: another layout")
        buckets_of_worker = self._received.setdefault(header.worker, {})
        if buckets_of_worker.setdefault(header.bucket, frame) is not frame:
            raise FrameError(f"bucket {header.bucket} of worker {header.worker} came twice")

    def _repeat_step(self, step: int, frame: Bytes) -> None:
        """Repeats a step of the master: sums the same frames in the same order."""
        if self._version is None or step != self._version + 1:
            raise FrameError(f"an update of step {step} came; the weights are {self._state_text()}")
        counted, factor, new_shares = read_update(frame, self._workers)
        buckets = self._buckets_at(step)
        frames = self._step_frames(step, counted, len(buckets))
        shares = new_shares or [self._share or 1 / len(counted)]
        total = OrderedSum(buckets, self.replica.gradient, len(counted), shares, checked=True)
        for bucket in buckets:
            total.advance(bucket, frames, counted)
        self.replica.step(step, factor)
        self._version, self._received = step, {}

    def _step_frames(
        self, step: int, counted: Sequence[int], buckets: int
    ) -> Mapping[int, Mapping[int, Bytes]]:
        """Returns the frames of the gradients in the step by worker, this worker included."""
        frames = dict(self._received)
        if self._rank in counted and self._sent[0] == step:
            frames[self._rank] = self._sent[1]
        if sorted(frames) != [*counted] or any(
            len(worker_frames) != buckets for worker_frames in frames.values()
        ):
            raise FrameError(
                f"an update of step {step} with the gradients of {[*counted]}; arrived: those of "
                f"{ {rank: len(own) for rank, own in sorted(frames.items())} }, "
                f"of {buckets} buckets each"
            )
        return frames

    def _apply_difference(self, header: Header, frame: Bytes) -> None:
        """Adds the difference of one bucket. After the last bucket the weights are of the next
        version.
        """
        if self._version is None or header.step != self._version + 1:
            raise FrameError(
                f"a difference to version {header.step} came; the weights are {self._state_text()}"
            )
        if header.bucket != self._buckets_applied or header.bucket >= len(self._differences):
            raise FrameError(
                f"the difference of bucket {header.bucket} came; {self._buckets_applied} is due"
            )
        bucket = self._differences[header.bucket]
        if header.layout_hash != bucket.layout_hash:
            raise FrameError(f"the difference of bucket {header.bucket}: another layout")
        part = self._weights[bucket.offset : bucket.offset + bucket.size]
        add_difference(bucket, frame, part, self._version)
        self._buckets_applied += 1
        if self._buckets_applied == len(self._differences):
            self._version, self._buckets_applied = header.step, 0

    def _restore_snapshot(self, version: int, frame: Bytes) -> None:
        """Restores weights and optimizer from a snapshot."""
        weights, state = read_snapshot(frame, len(self._weights))
        try:
            if state:
                self.replica.load_state_dict(state)
        except CheckpointError as error:
            raise FrameError(f"the master's snapshot of version {version}: {error}") from error
        self._weights.copy_(weights)
        self._version, self._received, self._buckets_applied = version, {}, 0
