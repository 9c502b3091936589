"""What goes from rank to rank, so that the master's link carries it once.

The workers that are free when a step opens form a chain in rank order. Each is told who is before
and behind it, and hands on each frame, unopened, while the next comes; weights are cut into pieces
for that. W workers then take about as long as one. Who is still busy is in no chain and holds
nobody.

Where a worker dies, those behind it are told by who stood behind it, and tell the master, who sends
them what they need by itself; those before it have all that they need.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Field
from atomo.communicators.parameter_server.messages import RAW
from atomo.errors import FrameError, PeerLost
from atomo.transports import Transport
from atomo.wire import Bytes, Flag, Header, Kind, pack, read_header, unpack

__all__ = [
    "ChainBroken",
    "Relay",
    "broken_frame",
    "chain_frames",
    "forward_frames",
    "read_chain",
    "read_relay",
    "receive_relayed",
    "relay_frames",
]

SMALLEST: Final = 1 << 15  # entries of a piece; lower => more messages
PIECES: Final = 64  # of large weights; higher => less waiting for a whole piece at each worker
MASTER: Final = 0
SHORT: Final = 64  # bytes; a frame that says no more than its header has fewer


class ChainBroken(Exception):
    """A worker between the master and this one died before all was handed on."""


@final
@dataclass(frozen=True)
class Relay:
    """A worker's place in the chain."""

    source: int
    """The rank that pieces come from."""
    to: int
    """The one that they are handed to; 0: it is the last."""


def piece_entries(entries: int) -> int:
    """How many entries a piece has, but for the last; both ends compute it."""
    return max(SMALLEST, -(-entries // PIECES))


def places(workers: Sequence[int]) -> Iterator[tuple[int, Relay]]:
    """Each worker of a chain, and its place."""
    links = [MASTER, *workers, MASTER]
    for before, worker, behind in zip(links, links[1:], links[2:], strict=False):
        yield worker, Relay(before, behind)


def relay_frames(
    step: int, weights: Float[Tensor, " n"], flags: Mapping[int, Flag]
) -> Iterator[tuple[int, Bytes]]:
    """Weights down a chain: to each worker its place, and the pieces to the first."""
    for worker, place in places([*flags]):
        section = torch.tensor([place.source, place.to], dtype=torch.int32)
        yield worker, pack(Header(Kind.RELAY, step, flags=flags[worker]), [section], RAW)
    for number, piece in enumerate(torch.split(weights, piece_entries(len(weights)))):
        yield next(iter(flags)), pack(Header(Kind.PART, step, bucket=number), [piece], RAW)


def chain_frames(
    step: int, workers: Sequence[int], frames: Sequence[Bytes]
) -> Iterator[tuple[int, Bytes]]:
    """Frames down a chain: to each worker its place, and the frames to the first."""
    for worker, place in places(workers):
        section = torch.tensor([place.source, place.to, len(frames)], dtype=torch.int32)
        yield worker, pack(Header(Kind.CHAIN, step), [section], RAW)
    for frame in frames:
        yield workers[0], frame


def read_relay(frame: Bytes, rank: int, size: int) -> Relay:
    """A worker's place.

    Raises:
        FrameError: there is no such place.
    """
    return checked(unpack(frame, [Field(torch.int32, (2,))])[0].tolist(), rank, size)


def checked(ranks: Sequence[int], rank: int, size: int) -> Relay:
    if len(ranks) != 2 or not {*ranks} <= {*range(size)} - {rank}:
        raise FrameError(f"rank {rank} of {size} is to stand between the ranks {ranks}")
    return Relay(*ranks)


def read_chain(frame: Bytes, rank: int, size: int) -> tuple[Relay, int]:
    """A worker's place, and how many frames come.

    Raises:
        FrameError: there is no such place, or nothing comes.
    """
    *ranks, count = unpack(frame, [Field(torch.int32, (3,))])[0].tolist() or [0]
    if count < 1:
        raise FrameError(f"a chain of {count} frames; at least 1")
    return checked(ranks, rank, size), count


def forward_frames(
    transport: Transport, relay: Relay, count: int, timeout_s: float, what: str
) -> Iterator[Bytes]:
    """Frames of the master's as they come, each of them already on its way to the next worker.

    Raises:
        ChainBroken: they do not come, as the next worker is told.
    """
    for number in range(count):
        asked = f"{what}, frame {number}, from rank {relay.source}"
        frame = receive_next(transport, relay.source, timeout_s, asked)
        if relay.to != MASTER:
            give(transport, relay.to, frame, what)
        if is_broken(frame):
            raise ChainBroken(asked)
        yield frame
    if relay.to != MASTER:
        # Nothing moves what is still here once this rank computes.
        drain(transport, timeout_s)


def broken_frame(step: int, worker: int) -> Bytes:
    """What was to come down the chain does not come to this worker."""
    return pack(Header(Kind.BROKEN, step, worker), [], RAW)


def is_broken(frame: Bytes) -> bool:
    """Whether a frame says that no other comes. Of those that are long no checksum is computed."""
    return frame.size < SHORT and read_header(frame).kind is Kind.BROKEN


def receive_next(transport: Transport, source: int, timeout_s: float, what: str) -> Bytes:
    """The next frame down the chain, or one that says that it is broken."""
    try:
        return transport.receive(source, timeout_s, what).data
    except PeerLost as lost:
        if source == MASTER or lost.rank != source:
            raise
        return broken_frame(0, transport.rank)


def give(transport: Transport, to: int, frame: Bytes, what: str) -> None:
    """Sends to the next worker, if it is still there: that it is not is no matter of this one's."""
    try:
        transport.send(to, frame, what)
    except PeerLost as lost:
        if lost.rank != to:
            raise
        transport.ignore_rank(to)


def drain(transport: Transport, timeout_s: float) -> None:
    """Waits until all has left that goes to somebody who is there."""
    while True:
        try:
            return transport.drain(timeout_s)
        except PeerLost as lost:
            if lost.rank == MASTER:
                raise
            transport.ignore_rank(lost.rank)


def receive_relayed(
    transport: Transport,
    relay: Relay,
    step: int,
    entries: int,
    timeout_s: float,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " n"]:
    """The weights of a step as float32, of which each piece is handed on as it comes, as `dtype`.

    Raises:
        FrameError: a piece is not the next one, or not of these weights.
    """
    weights = torch.empty(entries)
    parts = torch.split(weights, piece_entries(entries))
    what = f"the weights of step {step}"
    frames = forward_frames(transport, relay, len(parts), timeout_s, what)
    for number, (part, frame) in enumerate(zip(parts, frames, strict=True)):
        part.copy_(read_piece(frame, step, number, Field(dtype, part.shape)))
    return weights


def read_piece(frame: Bytes, step: int, number: int, due: Field) -> Float[Tensor, " n"]:
    """The entries of one piece."""
    header = read_header(frame)
    if (header.kind, header.step, header.bucket) != (Kind.PART, step, number):
        raise FrameError(
            f"a {header.kind.name} {header.bucket} of step {header.step} came; "
            f"piece {number} of the weights of step {step} is due"
        )
    piece = unpack(frame, [due])[0]
    if piece.shape != due.max_shape:
        raise FrameError(f"{len(piece)} weights came; piece {number} has {due.max_shape[0]}")
    return piece
