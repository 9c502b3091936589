"""A worker that repeats the master's steps."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.down import Replica
from atomo.communicators.parameter_server.messages import hash_frame, read_snapshot, read_update
from atomo.communicators.parameter_server.total import Total
from atomo.errors import CheckpointError, FrameError
from atomo.fusion import Bucket
from atomo.wire import Bytes, Header, Kind

__all__ = ["Follower"]


@final
class Follower:
    """Weights and an optimiser that are brought from version to version by what the master sends.

    What does not lead on from the version that is there is refused, so that nothing is taken twice
    or left out.
    """

    def __init__(
        self,
        replica: Callable[[], Replica],
        buckets_at: Callable[[int], Sequence[Bucket]],
        rank: int,
        workers: int,
        share: float | None = None,
    ) -> None:
        """A follower at version 0.

        Args:
            replica: makes the weights and the optimiser, once they are needed.
            buckets_at: the buckets of a step.
            rank: of the worker that follows.
            workers: how many there are.
            share: the weight of each gradient in a step; None: 1 / their number, for the mean.
        """
        self._make = replica
        self._buckets_at = buckets_at
        self._rank, self._workers, self._share = rank, workers, share
        self._version: int | None = 0
        self._others: dict[int, dict[int, Bytes]] = {}
        self._own: tuple[int, dict[int, Bytes]] = 0, {}

    @cached_property
    def replica(self) -> Replica:
        """What it has."""
        return self._make()

    def keep(self, step: int, bucket: int, frame: Bytes) -> None:
        """A frame of its own, which the master does not send back."""
        if self._own[0] != step:
            self._own = step, {}
        self._own[1][bucket] = frame

    def lose(self) -> None:
        """The weights came whole: there is no optimiser to go with them."""
        self._version = None

    def weights_for(self, step: int) -> Float[Tensor, " n"]:
        """The weights at which the gradient of `step` is computed.

        Raises:
            FrameError: they are of another version.
        """
        if self._version != step - 1 or self._others:
            raise FrameError(f"step {step} was ordered, and the weights are {self._where()}")
        return self.replica.weights

    def take(self, header: Header, frame: Bytes) -> None:
        """A GRADIENT, an UPDATE or a SNAPSHOT of the master's.

        Raises:
            FrameError: it does not lead on from here.
        """
        match header.kind:
            case Kind.GRADIENT:
                self._collect(header, frame)
            case Kind.UPDATE:
                self._update(header.step, frame)
            case _:
                self._restore(header.step, frame)

    def hash(self, version: int) -> Bytes:
        """The answer to the master's question for the hash of its weights.

        Raises:
            FrameError: the question is about another version.
        """
        if self._version != version:
            raise FrameError(
                f"a hash of version {version} was asked for; the weights are {self._where()}"
            )
        return hash_frame(version, self._rank, self.replica.weights)

    def _where(self) -> str:
        version = "of no version" if self._version is None else f"of version {self._version}"
        return version + (f", with gradients of {sorted(self._others)}" if self._others else "")

    def _collect(self, header: Header, frame: Bytes) -> None:
        """Holds a gradient until the update that it belongs to."""
        if self._version is None or header.step != self._version + 1:
            raise FrameError(
                f"a gradient of step {header.step} came; the weights are {self._where()}"
            )
        buckets = self._buckets_at(header.step)
        if header.bucket >= len(buckets) or header.layout != buckets[header.bucket].layout:
            raise FrameError(f"bucket {header.bucket} of worker {header.worker}: another layout")
        held = self._others.setdefault(header.worker, {})
        if held.setdefault(header.bucket, frame) is not frame:
            raise FrameError(f"bucket {header.bucket} of worker {header.worker} came twice")

    def _update(self, step: int, frame: Bytes) -> None:
        """Takes a step, as the master did."""
        if self._version is None or step != self._version + 1:
            raise FrameError(f"an update of step {step} came; the weights are {self._where()}")
        counted, factor = read_update(frame, self._workers)
        buckets = self._buckets_at(step)
        arrived = self._arrived(step, counted, len(buckets))
        share = 1 / len(counted) if self._share is None else self._share
        Total(buckets, self.replica.gradient, len(counted), share).advance(arrived, counted)
        self.replica.step(step, factor)
        self._version, self._others = step, {}

    def _arrived(
        self, step: int, counted: Sequence[int], buckets: int
    ) -> Mapping[int, Mapping[int, Bytes]]:
        """The frames of those that counted, its own among them."""
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

    def _restore(self, version: int, frame: Bytes) -> None:
        """Puts weights and optimiser where a snapshot says."""
        weights, state = read_snapshot(frame, len(self.replica.weights))
        try:
            self.replica.load_state_dict(state)
        except CheckpointError as error:
            raise FrameError(f"the master's snapshot of version {version}: {error}") from error
        self.replica.weights.copy_(weights)
        self._version, self._others = version, {}
