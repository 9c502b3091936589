"""A worker's end of the parameter server."""

import time
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Field
from atomo.communicators.exchange import Compressor
from atomo.communicators.parameter_server.state import State, read_state, state_tensor
from atomo.communicators.report import Report
from atomo.fusion import Bucket
from atomo.transports import Transport
from atomo.wire import Bytes, Compression, Flag, Header, Kind, pack, read_header, unpack

__all__ = ["Client", "Order"]

MASTER = 0
PATIENCE = 1.5  # a worker waits this much longer, so that the master's better message comes first
RAW = Compression(codec="none")


@dataclass(frozen=True)
class Order:
    """What the master wants of a worker next."""

    kind: Kind
    step: int
    weights: Float[Tensor, " n"] | None = None
    state: dict[str, Tensor] | None = None


@final
class Client:
    """A worker's end."""

    def __init__(
        self, transport: Transport, entries: int, compressor: Compressor, timeout_s: float
    ) -> None:
        self._transport = transport
        self._entries = entries
        self._compressor = compressor
        self._timeout_s = PATIENCE * timeout_s
        self._step = 0

    def pull(self) -> Order:
        """Waits for the master's next order."""
        what = f"the master's order after step {self._step}"
        frame = self._transport.receive(MASTER, self._timeout_s, what).data
        header = read_header(frame)
        if header.flags & Flag.LATE:
            self._compressor.take_back()
        self._step = header.step
        order = Order(header.kind, header.step)
        if header.kind is Kind.WEIGHTS:
            return replace(
                order, weights=unpack(frame, [Field(torch.float32, (self._entries,))])[0]
            )
        return replace(order, state=read_state(frame)) if header.kind is Kind.STATE else order

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> float:
        """Compresses and sends one bucket. `flat` is no longer the gradient afterwards.

        Returns:
            The seconds that sending took.
        """
        what, spent = f"bucket {bucket.number} of step {self._step}", 0.0

        def send(frame: Bytes) -> None:
            nonlocal spent
            started = time.perf_counter()
            self._transport.send(MASTER, frame, what)
            spent = time.perf_counter() - started

        self._compressor.compress(bucket, flat, self._step, send)
        return spent

    def report(self, report: Report) -> None:
        """Declares the gradient of this step complete."""
        self._reply(Kind.REPORT, report.tensor())

    def send_state(self, state: State) -> None:
        """Answers an order to save."""
        self._reply(Kind.STATE, state_tensor(state))

    def _reply(self, kind: Kind, section: Tensor) -> None:
        header = Header(kind, self._step, self._transport.rank)
        self._transport.send(MASTER, pack(header, [section], RAW), f"a {kind.name.lower()}")
