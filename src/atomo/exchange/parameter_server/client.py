"""Worker's end of the parameter server."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError
from atomo.exchange.compressor import Compressor
from atomo.exchange.parameter_server.follower import Follower
from atomo.exchange.parameter_server.frames.messages import (
    RAW,
    Pace,
    read_members,
    read_pace,
    read_weights,
)
from atomo.exchange.parameter_server.frames.relay import (
    ChainBroken,
    broken_frame,
    forward_frames,
    read_chain,
    read_relay,
    receive_relayed,
)
from atomo.exchange.parameter_server.uplink import MASTER, Uplink
from atomo.exchange.report import Report
from atomo.exchange.state import State, read_state, state_frame
from atomo.fusion import Bucket
from atomo.transports import Transport
from atomo.wire import Bytes, Flag, Header, Kind, pack, read_header

__all__ = ["Client", "Command"]

COMMANDS = (Kind.WEIGHTS, Kind.RELAY, Kind.BEGIN, Kind.SAVE, Kind.STATE, Kind.STOP)
CHAIN_COMMANDS = (Kind.BEGIN, Kind.HASH)  # commands that need the frames of the last chain
FULL_WEIGHTS = (Kind.WEIGHTS, Kind.RELAY, Kind.SNAPSHOT)  # kinds that need no earlier frame
SYNC_FRAMES = (Kind.GRADIENT, Kind.UPDATE, Kind.DELTA, Kind.SNAPSHOT, Kind.HASH, Kind.CHAIN)
TIMEOUT_FACTOR = 1.5  # on the timeout: the master fails first, with the clearer error


@dataclass(frozen=True)
class Command:
    """Command of the master."""

    kind: Kind
    step: int
    weights: Float[Tensor, " n"] | None = None
    """Weights at which to compute the gradient of `step`; None for other commands."""
    state: dict[str, Tensor] | None = None
    follow_s: float = 0.0
    """Seconds spent on following the master's weights while waiting for the command."""
    workers: tuple[int, ...] = ()
    """Workers that share the samples of the step, in rank order."""


@final
class Client:
    """Worker's end of the parameter server."""

    def __init__(
        self,
        transport: Transport,
        entries: int,
        compressor: Compressor,
        timeout_s: float,
        threads: int = 1,
        follower: Follower | None = None,
        dtype: torch.dtype = torch.float32,
        is_spare: bool = False,
        on_pace: Callable[[int, Pace], None] | None = None,
    ) -> None:
        """Starts a client that waits for its first command.

        Args:
            transport: to the master.
            entries: of the flat weights.
            compressor: encodes buckets into frames.
            timeout_s: longest wait for the master.
            threads: number of threads that encode; 1 if the caller of `push` encodes.
            follower: applies the master's steps; None if all weights arrive at each step.
            dtype: of whole weights in frames.
            is_spare: True for a spare, which gets no frame before it takes a slot.
            on_pace: receives number and pace of a round that the master determined; None: rounds
                have a given number of steps.
        """
        self._transport, self._on_pace = transport, on_pace
        self._entries = entries
        self._compressor = compressor
        self._follower, self._dtype = follower, dtype
        self._timeout_s = TIMEOUT_FACTOR * timeout_s
        on_sent = discard if follower is None else follower.record_sent
        self._uplink = Uplink(transport, compressor, self._timeout_s, threads, on_sent)
        self._step, self._is_spare = 0, is_spare
        self.wait_started = 0.0
        """Start of the wait for the last command, by the performance counter."""
        self._chain_broken = False  # True if the frames of a chain did not arrive
        self._workers = tuple(range(1, transport.size))  # as of the last MEMBERS frame

    def pull(self) -> Command:
        """Waits for the master's next command.

        Raises:
            FrameError: the frame is no command, or holds weights of another model.
        """
        self.wait_started = time.perf_counter()
        while True:
            try:
                return self._next()
            except ChainBroken:
                self._chain_broken = True
                frame = broken_frame(self._step, self._transport.rank)
                self._transport.send(MASTER, frame, "a broken chain")

    def _next(self) -> Command:
        frame, header, follow_s = self._next_command()
        self._apply_verdict(header)
        self._step = header.step
        command = Command(header.kind, header.step, follow_s=follow_s, workers=self._workers)
        match header.kind:
            case Kind.WEIGHTS | Kind.RELAY:
                weights = self._read_weights(header, frame)
                return replace(command, kind=Kind.WEIGHTS, weights=weights)
            case Kind.BEGIN:
                return replace(
                    command, weights=self._require_follower(header).weights_for(header.step)
                )
            case Kind.STATE:
                return replace(command, state=read_state(frame))
        return command

    def _apply_verdict(self, header: Header) -> None:
        """Takes the last gradient back into the memory if it was late."""
        if header.flags & Flag.LATE:
            self._compressor.take_back()

    def _next_command(self) -> tuple[Bytes, Header, float]:
        """Returns the next command, its header, and the seconds spent on frames of the weight sync
        that arrived before the command.
        """
        follow_s = 0.0
        label = f"the master's command after step {self._step}"
        while True:
            frame = self._receive(label)
            header = read_header(frame)
            self._chain_broken = self._chain_broken and header.kind not in FULL_WEIGHTS
            if self._chain_broken and header.kind in CHAIN_COMMANDS:
                self._apply_verdict(header)
                continue
            if header.kind in COMMANDS:
                return frame, header, follow_s
            if header.kind is Kind.MEMBERS:
                self._workers = read_members(frame, self._transport.rank, self._transport.size - 1)
                continue
            if header.kind is Kind.PACE and self._on_pace is not None:
                self._on_pace(header.step, read_pace(frame, self._transport.size - 1))
                continue
            if header.kind not in SYNC_FRAMES:
                raise FrameError(f"the master sent a {header.kind.name}, which is no command")
            for part in self._unwrap(header, frame):
                started = time.perf_counter()
                self._apply(self._require_follower(header), part)
                follow_s += time.perf_counter() - started

    def _receive(self, label: str) -> Bytes:
        """Returns the next frame of the master."""
        if self._is_spare:
            self._is_spare = False
            frame = self._transport.wait_idle(MASTER, "a slot").data
            self.wait_started = time.perf_counter()
            return frame
        return self._transport.receive(MASTER, self._timeout_s, label).data

    def _unwrap(self, header: Header, frame: Bytes) -> Iterator[Bytes]:
        """Yields the frame itself, or the frames of the chain that a CHAIN frame announces, which
        are also forwarded.
        """
        if header.kind is not Kind.CHAIN:
            yield frame
            return
        relay, count = read_chain(frame, self._transport.rank, self._transport.size)
        label = f"the update of step {header.step}"
        yield from forward_frames(self._transport, relay, count, self._timeout_s, label)

    def _apply(self, follower: Follower, frame: Bytes) -> None:
        header = read_header(frame)
        if header.kind is Kind.HASH:
            self._transport.send(MASTER, follower.hash(header.step), "a hash")
        else:
            follower.apply(header, frame)

    def _read_weights(self, header: Header, frame: Bytes) -> Float[Tensor, " n"]:
        """Returns the weights of a WEIGHTS frame, or receives and forwards those of a RELAY."""
        if self._follower is not None:
            self._follower.invalidate()
        if header.kind is Kind.WEIGHTS:
            return read_weights(frame, self._entries, self._dtype)
        relay = read_relay(frame, self._transport.rank, self._transport.size)
        step, timeout_s, dtype = header.step, self._timeout_s, self._dtype
        return receive_relayed(self._transport, relay, step, self._entries, timeout_s, dtype)

    def _require_follower(self, header: Header) -> Follower:
        if self._follower is None:
            raise FrameError(
                f"the master sent a {header.kind.name}, which is no command for a worker that gets "
                "all weights at each step"
            )
        return self._follower

    def begin(self, buckets: Sequence[Bucket]) -> None:
        """Opens the commanded step, with its buckets and codecs."""
        self._uplink.begin(self._step, buckets)

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Encodes and sends the gradient of a bucket. `flat` is scratch space until `flush`
        returns.

        Raises:
            CodecError: a codec cannot encode the gradient.
        """
        self._uplink.push(bucket, flat)

    def flush(self) -> None:
        """Sends the buckets that waited for the whole gradient, and those still being encoded.

        Raises:
            CodecError: a codec cannot encode the gradient.
        """
        self._uplink.flush()

    @property
    def encode_s(self) -> float:
        """Seconds spent on encoding in this step."""
        return self._uplink.encode_s

    @property
    def send_s(self) -> float:
        """Seconds spent in this step on sending and on waiting for agreed scales."""
        return self._uplink.send_s

    def report(self, report: Report) -> None:
        """Reports the gradient of this step as complete."""
        self._reply(pack(self._header(Kind.REPORT), [report.tensor()], RAW), "a report")

    def send_state(self, state: State) -> None:
        """Sends the state of this worker: the answer to a SAVE command."""
        self._reply(state_frame(self._header(Kind.STATE), state), "a state")

    def _header(self, kind: Kind) -> Header:
        return Header(kind, self._step, self._transport.rank)

    def _reply(self, frame: Bytes, label: str) -> None:
        self._transport.send(MASTER, frame, label)


def discard(step: int, bucket: int, frame: Bytes) -> None:
    """Discards a sent frame: without a follower no later step needs it."""
    del step, bucket, frame
