"""One rank's part in averages that are dense inside a host, and compressed between hosts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import TransportError
from atomo.exchange.collectives.intra_host_group import IntraHostGroup
from atomo.hooks.adapter.averager import Averager, RunInExchange
from atomo.hooks.adapter.chunks import Chunk, InFlight, ScratchSpace

__all__ = ["HostAverager", "HostChunk"]

FLAG: Final = 1  # entries after a mean; a value other than 0: the first rank failed, no mean


@final
@dataclass(frozen=True)
class HostChunk:
    """A chunk of this rank, and of its host."""

    chunk: Chunk
    """The chunk of this rank."""
    host: Chunk
    """The chunk of the host as one worker, where this rank is the first."""
    flat: Float[Tensor, " n"]
    """The gradients of this rank, then of the host, then the mean; and a flag at the end."""
    name: str
    """The name of the chunk in errors, and in the frames of its host."""
    error: BaseException | None = None


@final
@dataclass(frozen=True)
class HostBatch:
    """Chunks that pass the stages together."""

    chunks: Sequence[HostChunk]
    sent: list[InFlight]
    """The chunks of the host in flight; empty except at its first rank."""
    error: BaseException | None
    """The error that prevents a mean, if there is one."""


@final
class HostAverager:
    """Has the first rank of each host average the sums of hosts.

    It has the stages of an `Averager`. The thread that encodes sums inside the host, and the thread
    that decodes broadcasts the mean inside the host. An error of the first rank is broadcast in
    place of the mean, and the other ranks raise it too.
    """

    def __init__(self, averager: Averager, inside: IntraHostGroup) -> None:
        """Makes an averager at step 0.

        Args:
            averager: the averager over the first ranks of all hosts; on other ranks it only counts.
            inside: the ranks of this host.
        """
        self._averager, self._inside = averager, inside
        self._scratch = ScratchSpace(FLAG)

    def prepare(self, chunk: Chunk, last: bool) -> HostChunk:
        """Sums a chunk inside the host. Arguments: those of `Averager.prepare`.

        Raises:
            TransportError: another rank of this host has not sent its part.
        """
        began, flat = time.perf_counter(), self._scratch.flat(chunk)
        # The first rank counts the step before it sends the last mean, so the name is made here.
        name = f"bucket {chunk.number} of step {self._averager.step}"
        host = copy_to_flat(chunk, flat[:-FLAG])
        self._inside.reduce(flat[:-FLAG], f"{name} inside this host")
        self._averager.stats.encode_s += time.perf_counter() - began
        own = HostChunk(chunk, host, flat, name)
        if not self._inside.leads:
            return own
        try:
            self._averager.prepare(host, last)
        except BaseException as error:
            return replace(own, error=error)
        self._averager.stats.dense_bytes += chunk.dense_bytes - host.dense_bytes
        return own

    def encode(self, chunks: Sequence[HostChunk], run_in_exchange: RunInExchange) -> HostBatch:
        """Encodes the sums, at the first rank. Arguments: those of `Averager.encode`."""
        batch = HostBatch(chunks, [], next(filter(None, (chunk.error for chunk in chunks)), None))
        hosts = [chunk.host for chunk in chunks]
        return self._lead(batch, lambda: self._averager.encode(hosts, run_in_exchange))

    def exchange(self, batch: HostBatch) -> HostBatch:
        """Sends and receives between hosts, at the first rank of each."""
        return self._lead(batch, lambda: self._averager.exchange(batch.sent))

    def decode(self, batch: HostBatch, last: bool) -> None:
        """Replaces the gradients by their average, in place; with `last`, closes the step.

        Raises:
            AtomoError: the error of an `Averager` at the first rank of this host, of any stage.
        """
        batch = self._lead(batch, lambda: self._decode(batch.sent, last))
        # All chunks, also after an error: the other ranks wait for each of them.
        errors = [self._share_mean(chunk, batch.error) for chunk in batch.chunks]
        if error := next(filter(None, errors), None):
            raise error
        if not self._inside.leads:
            for chunk in batch.chunks:
                self._averager.skipper.check(chunk.chunk)
            self._averager.decode([], last)
        if last:
            self._scratch.tidy()

    def _decode(self, sent: list[InFlight], last: bool) -> list[InFlight]:
        self._averager.decode(sent, last)
        return []

    def _share_mean(self, own: HostChunk, error: BaseException | None) -> BaseException | None:
        """Broadcasts the mean of the first rank. Returns the error of the first rank, if any."""
        began, label = time.perf_counter(), f"the mean of {own.name}"
        if self._inside.leads:
            own.flat[-FLAG:] = float(error is not None)
        try:
            self._inside.broadcast(own.flat, label)
        except TransportError as lost:
            raise error or lost from lost  # the other ranks have waited as long as this rank
        self._averager.stats.decode_s += time.perf_counter() - began
        if own.flat[-FLAG:].any():
            shared = self._inside.broadcast_error(error, f"the error of {label}")
            return error or shared
        own.chunk.replace(own.flat[:-FLAG])
        return None

    def _lead(self, batch: HostBatch, work: Callable[[], list[InFlight]]) -> HostBatch:
        """Does the work of the first rank. An error goes into the batch, for later stages."""
        if batch.error is not None or not self._inside.leads:
            return batch
        try:
            return replace(batch, sent=work())
        except BaseException as error:
            return replace(batch, error=error)


def copy_to_flat(chunk: Chunk, flat: Float[Tensor, " n"]) -> Chunk:
    """Copies a chunk to one float32 tensor: a sum in half precision could overflow."""
    gradients, start = {}, 0
    for name, gradient in chunk.gradients.items():
        gradients[name] = flat[start : start + gradient.numel()].view(gradient.shape)
        gradients[name].copy_(gradient)
        start += gradient.numel()
    return Chunk(chunk.number, gradients, flat, chunk.scale)
