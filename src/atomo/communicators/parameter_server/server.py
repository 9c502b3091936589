"""The master's end of the parameter server."""

import time
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.checks import check_frame
from atomo.communicators.parameter_server.down import Down, Taken, Weights
from atomo.communicators.parameter_server.messages import RAW
from atomo.communicators.parameter_server.total import Total
from atomo.communicators.report import Report
from atomo.communicators.scales import Scales, read_scales
from atomo.communicators.state import State, read_state, state_frame
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.transports import Message, Transport
from atomo.wire import Bytes, Flag, Header, Kind, pack, read_header, unpack

__all__ = ["Server"]


@final
class Server:
    """The master's end."""

    def __init__(
        self,
        transport: Transport,
        buckets: Sequence[Bucket],
        needed: int,
        timeout_s: float,
        down: Down | None = None,
        share: float | None = None,
    ) -> None:
        """A server.

        Args:
            transport: what connects it with the workers.
            buckets: what they send.
            needed: how many of them close a step.
            timeout_s: the longest wait for one of them.
            down: how the weights come to the workers; None: whole, at every step.
            share: the weight of each gradient in the sum; None: 1 / needed, for their mean.
        """
        self._transport = transport
        self._buckets = buckets
        self._workers = range(1, transport.size)
        self._needed = needed
        self._timeout_s = timeout_s
        self._down = Weights() if down is None else down
        self._share = 1 / needed if share is None else share
        self._step = 0
        self._counted: dict[int, dict[int, Bytes]] = {}
        self._busy: dict[int, int] = {}  # worker -> the step that it computes
        self._late: set[int] = set()
        self._scales = Scales(self._needed)
        self.decode_s = 0.0  # spent on decoding and adding up, so far

    def expect(self, buckets: Sequence[Bucket]) -> None:
        """Expects these buckets from the next step on: the same layout, perhaps other codecs."""
        self._buckets = buckets

    @property
    def notes(self) -> list[str]:
        """What a person should know of the workers' weights, until somebody takes it out."""
        return self._down.notes

    def meet(self, weights: Float[Tensor, " n"]) -> None:
        """Before the first step of a run that starts anew: who built the same weights has them."""
        for worker in self._workers:
            self._send_all(worker, self._down.greet(worker, weights), "a greeting")
        while owing := [worker for worker in self._workers if self._down.awaits(worker)]:
            what = f"the hash of the initial weights of worker {owing}"
            message = self._transport.receive(None, self._timeout_s, what)
            if not self._is_hash(message, read_header(message.data)):
                raise FrameError(f"rank {message.source} sent no hash before the first step")

    def broadcast(self, step: int, weights: Float[Tensor, " n"]) -> None:
        """Opens a step: every worker that is not still busy with an earlier one comes to `weights`.

        They must not change before `took`.
        """
        self._step = step
        self._down.open(step, weights)
        self._scales = Scales(self._needed)
        self._assign([worker for worker in self._workers if worker not in self._busy])

    def collect(self, out: Float[Tensor, " n"]) -> dict[int, Report]:
        """Closes the step: `out` becomes the mean gradient of the first `needed` workers,
        or their sum times the share that each has.

        Returns:
            Their reports, by rank.
        """
        arrived: dict[int, dict[int, Bytes]] = {worker: {} for worker in self._workers}
        reports: dict[int, Report] = {}
        total = Total(self._buckets, out, self._needed, self._share)
        everyone = self._needed == len(self._workers)
        missing = list(self._workers)
        what = self._gradients_of(missing)
        while len(reports) < self._needed:
            message, header = self._receive(what)
            worker = message.source
            if header.kind is Kind.SCALES:
                self._answer_scales(message, header)
            elif header.step != self._step:
                self._readmit(header, worker)
            elif header.kind is Kind.REPORT:
                reports[worker] = self._complete(message.data, worker, arrived[worker])
                missing.remove(worker)
                what = self._gradients_of(missing)
            else:
                arrived[worker][header.bucket] = message.data
                if everyone:
                    self._advance(total, [self._buckets[header.bucket]], arrived, self._workers)
        order = sorted(reports)
        self._advance(total, self._buckets, arrived, order)
        self._counted = {worker: arrived[worker] for worker in order}
        return {worker: reports[worker] for worker in order}

    def took(self, factor: float) -> None:
        """What was collected made a step, `factor` times as long: the weights are the next."""
        self._down.took(Taken(self._step, self._counted, factor))

    def _advance(
        self,
        total: Total,
        buckets: Sequence[Bucket],
        arrived: Mapping[int, Mapping[int, Bytes]],
        order: Sequence[int],
    ) -> None:
        started = time.perf_counter()
        for bucket in buckets:
            total.advance(bucket, arrived, order)
        self.decode_s += time.perf_counter() - started

    def save(self) -> list[dict[str, Tensor]]:
        """The state of every worker, once all are done with what they compute."""
        self._settle()
        settled = self._down.settle(self._workers)
        for worker in self._workers:
            self._send_all(worker, settled[worker], f"the weights after step {self._step}")
            self._send(worker, Kind.SAVE)
        states: dict[int, dict[str, Tensor]] = {}
        while len(states) < len(self._workers):
            missing = [w for w in self._workers if w not in states]
            what = f"the state of worker {missing} for the checkpoint of step {self._step}"
            message = self._transport.receive(None, self._timeout_s, what)
            if not self._is_hash(message, read_header(message.data)):
                states[message.source] = read_state(message.data)
        return [states[worker] for worker in self._workers]

    def restore(self, states: Sequence[State]) -> None:
        """Gives each worker the state that it continues from."""
        for worker, state in zip(self._workers, states, strict=True):
            frame = state_frame(self._header(worker, Kind.STATE), state)
            self._transport.send(worker, frame, "an order to state")

    def stop(self) -> None:
        """Ends the run of every worker."""
        self._settle()
        for worker in self._workers:
            self._send(worker, Kind.STOP)
        self._transport.drain(self._timeout_s)

    def _assign(self, workers: Sequence[int]) -> None:
        self._busy |= dict.fromkeys(workers, self._step)
        what = f"the weights of step {self._step}"
        for worker, frame in self._down.orders({w: self._verdict(w) for w in workers}):
            self._transport.send(worker, frame, what)

    def _send_all(self, worker: int, frames: Sequence[Bytes], what: str) -> None:
        for frame in frames:
            self._transport.send(worker, frame, what)

    def _verdict(self, worker: int) -> Flag:
        """What to tell a worker of its last gradient. It is told once."""
        late = worker in self._late
        self._late.discard(worker)
        return Flag.LATE if late else Flag.NONE

    def _header(self, worker: int, kind: Kind) -> Header:
        return Header(kind, self._step, worker, flags=self._verdict(worker))

    def _send(self, worker: int, kind: Kind, sections: Sequence[Tensor] = ()) -> None:
        frame = pack(self._header(worker, kind), sections, RAW)
        self._transport.send(worker, frame, f"an order to {kind.name.lower()}")

    def _gradients_of(self, workers: list[int]) -> str:
        return f"the gradients of worker {workers} at step {self._step}"

    def _receive(self, what: str) -> tuple[Message, Header]:
        while True:
            message = self._transport.receive(None, self._timeout_s, what)
            header = read_header(message.data)
            if not self._is_hash(message, header):
                late = header.step != self._step
                given = self._busy.get(message.source)
                check_frame(header, message.source, given, () if late else self._buckets)
                return message, header

    def _is_hash(self, message: Message, header: Header) -> bool:
        """Whether it was an answer to what the way down had asked."""
        if header.kind is not Kind.HASH:
            return False
        if header.worker != message.source:
            raise FrameError(f"rank {message.source} sent the hash of worker {header.worker}")
        self._down.heard(message.source, message.data)
        return True

    def _complete(self, frame: Bytes, worker: int, buckets: Mapping[int, Bytes]) -> Report:
        if len(buckets) != len(self._buckets):
            raise FrameError(
                f"worker {worker} reported step {self._step} complete after {len(buckets)} of "
                f"{len(self._buckets)} buckets"
            )
        del self._busy[worker]
        return Report.of(unpack(frame, [Report.field()])[0])

    def _answer_scales(self, message: Message, header: Header) -> None:
        """Answers who waits for scales. Who is late gets none: what it encodes never counts."""
        if header.step != self._step:
            self._send(message.source, Kind.SCALES, [torch.empty(0, dtype=torch.float64)])
            return
        count = sum(len(bucket.agreeing) for bucket in self._buckets)
        asked = read_scales(message.data, count)
        for worker in self._scales.ask(message.source, asked):
            self._send(worker, Kind.SCALES, [self._scales.section])

    def _readmit(self, header: Header, worker: int) -> None:
        """Gives a worker whose whole gradient came too late the step that is open."""
        if header.kind is Kind.REPORT:
            self._late.add(worker)
            self._assign([worker])

    def _settle(self) -> None:
        """Waits until no worker computes any more. What still comes in came too late."""
        while self._busy:
            message, header = self._receive(self._gradients_of(sorted(self._busy)))
            if header.kind is Kind.SCALES:
                self._answer_scales(message, header)
            elif header.kind is Kind.REPORT:
                del self._busy[message.source]
                self._late.add(message.source)
