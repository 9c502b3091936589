"""One rank's part in averages that are dense inside a host, and compressed between hosts."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import TransportError
from atomo.hooks.adapter.averager import Averager, RunInExchange
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.in_flight import InFlight, ScratchSpace
from atomo.hooks.adapter.intra_host import HookHostGroup

__all__ = ["Carried", "HostAverager"]

FLAG: Final = 1  # entries behind a mean: whether it is none, since the first rank failed


@final
@dataclass(frozen=True)
class Carried:
    """A chunk on its way."""

    chunk: Chunk
    """This rank's."""
    flat: Float[Tensor, " n"]
    """Its gradients, then its host's, then the mean; and a flag."""
    sent: list[InFlight]
    """The chunks of the host in flight; empty except at its first rank."""
    wrong: BaseException | None = None
    """The error because of which there will be no mean."""


@final
class HostAverager:
    """Has the first rank of each host average with those of others what the host has summed.

    The three stages of an `Averager`, in whose place it stands: the sum inside is in the thread
    that encodes, and the mean is given to the other ranks in the one that decodes. Whatever goes
    wrong at the first rank, it says so to the others, which raise the same.
    """

    def __init__(self, averager: Averager, inside: HookHostGroup) -> None:
        """Makes an averager at step 0.

        Args:
            averager: over the first ranks of all hosts; elsewhere it has nothing to do but count.
            inside: this host.
        """
        self._averager, self._inside = averager, inside
        self._scratch = ScratchSpace(FLAG)
        self._held: list[Carried] = []  # until the norm of the whole gradient is known

    def encode(
        self, chunk: Chunk, scale: float, last: bool, run_in_exchange: RunInExchange
    ) -> Carried:
        """Sums a chunk inside the host, and encodes the sum. Arguments: as of `Averager.encode`.

        Raises:
            TransportError: another rank of this host has not said its part.
        """
        began, flat = time.perf_counter(), self._scratch.flat(chunk)
        host = laid_out(chunk, flat[:-FLAG])
        self._inside.sum(flat[:-FLAG], f"{self._name(chunk)} inside this host")
        self._averager.stats.encode_s += time.perf_counter() - began
        carried = Carried(chunk, flat, [])
        return self._lead(carried, lambda: self._encode(host, chunk, scale, last, run_in_exchange))

    def exchange(self, carried: Carried) -> Carried:
        """Sends and receives between hosts, at the first rank of each."""
        return self._lead(carried, lambda: self._averager.exchange(carried.sent))

    def decode(self, carried: Carried, last: bool) -> None:
        """Replaces the gradients by their average, in place; with `last`, closes the step.

        Raises:
            AtomoError: what an `Averager` of the first rank of this host raises, at any stage.
        """
        carried = self._lead(carried, lambda: self._decode(carried.sent, last))
        self._held.append(carried)
        if self._averager.memory.needs_norm and not last:
            return  # the first rank has encoded none of it
        given, self._held = self._held, []
        # All of them, also where one is wrong, lest the others wait.
        wrongs = [self._give(one, carried.wrong) for one in given]
        if wrong := next(filter(None, wrongs), None):
            raise wrong
        if not self._inside.leads:
            self._follow(given, last)
        if last:
            self._scratch.tidy()

    def _encode(
        self, host: Chunk, chunk: Chunk, scale: float, last: bool, run_in_exchange: RunInExchange
    ) -> list[InFlight]:
        sent = self._averager.encode(host, scale, last, run_in_exchange)
        self._averager.stats.dense_bytes += chunk.dense_bytes - host.dense_bytes
        return sent

    def _decode(self, sent: list[InFlight], last: bool) -> list[InFlight]:
        self._averager.decode(sent, last)
        return []

    def _follow(self, given: list[Carried], last: bool) -> None:
        """Counts what another rank has averaged."""
        for one in given:
            self._averager.look(one.chunk)
        self._averager.decode([], last)

    def _give(self, one: Carried, wrong: BaseException | None) -> BaseException | None:
        """Gives the mean to all ranks of the host, or takes it; what there is in its place."""
        began, what = time.perf_counter(), f"the mean of {self._name(one.chunk)}"
        if self._inside.leads:
            one.flat[-FLAG:] = float(wrong is not None)
        try:
            self._inside.give(one.flat, what)
        except TransportError as error:
            raise wrong or error from error  # the others have waited as long as this one
        self._averager.stats.decode_s += time.perf_counter() - began
        if one.flat[-FLAG:].any():
            told = self._inside.tell(wrong, f"what is wrong with {what}")
            return wrong or told
        one.chunk.replace(one.flat[:-FLAG])
        return None

    def _lead(self, carried: Carried, work: Callable[[], list[InFlight]]) -> Carried:
        """Does what the first rank alone does. What is wrong goes on with the chunk."""
        if carried.wrong is not None or not self._inside.leads:
            return carried
        try:
            return replace(carried, sent=work())
        except BaseException as error:
            return replace(carried, wrong=error)

    def _name(self, chunk: Chunk) -> str:
        return f"bucket {chunk.number} of step {self._averager.step}"


def laid_out(chunk: Chunk, flat: Float[Tensor, " n"]) -> Chunk:
    """Copies a chunk to float32 in one tensor, which half precision could not add up."""
    gradients, start = {}, 0
    for name, gradient in chunk.gradients.items():
        gradients[name] = flat[start : start + gradient.numel()].view(gradient.shape)
        gradients[name].copy_(gradient)
        start += gradient.numel()
    return Chunk(chunk.number, gradients, flat)
