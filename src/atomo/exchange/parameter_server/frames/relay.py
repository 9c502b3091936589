"""Chain of workers that forward the master's frames, so that the master's link carries them once.

The idle workers form a chain in rank order when a step opens. Each worker gets the ranks before and
after it, and forwards each frame undecoded while the next frame arrives. Weights are split into
pieces, so that W workers take about as long as one. A busy worker is not in the chain and does not
delay it.

If a worker dies, the next worker sends a BROKEN frame down the chain. Each worker that gets BROKEN
reports it to the master, which sends the missing frames directly. The workers before the dead
worker have all frames.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError, PeerLost
from atomo.exchange.parameter_server.frames.messages import RAW
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
PIECES: Final = 64  # of large weights; higher => shorter wait for a whole piece at each worker
MASTER: Final = 0
SHORT: Final = 64  # bytes; a frame without sections is shorter


class ChainBroken(Exception):
    """Error: a worker between the master and this worker died before it forwarded all frames."""


@final
@dataclass(frozen=True)
class Relay:
    """Neighbours of a worker in the chain."""

    source: int
    """Rank that frames come from."""
    to: int
    """Rank that frames are forwarded to; 0 for the last worker."""


def piece_entries(entries: int) -> int:
    """Returns the entries of a piece, except the last; both ends compute it."""
    return max(SMALLEST, -(-entries // PIECES))


def neighbors(workers: Sequence[int]) -> Iterator[tuple[int, Relay]]:
    """Yields each worker of a chain with its neighbours."""
    links = [MASTER, *workers, MASTER]
    for source, worker, target in zip(links, links[1:], links[2:], strict=False):
        yield worker, Relay(source, target)


def relay_frames(
    step: int, weights: Float[Tensor, " n"], flags: Mapping[int, Flag]
) -> Iterator[tuple[int, Bytes]]:
    """Yields weights down a chain: the neighbours to each worker, and the pieces to the first."""
    for worker, place in neighbors([*flags]):
        section = torch.tensor([place.source, place.to], dtype=torch.int32)
        yield worker, pack(Header(Kind.RELAY, step, flags=flags[worker]), [section], RAW)
    for number, piece in enumerate(torch.split(weights, piece_entries(len(weights)))):
        yield next(iter(flags)), pack(Header(Kind.PART, step, bucket=number), [piece], RAW)


def chain_frames(
    step: int, workers: Sequence[int], frames: Sequence[Bytes]
) -> Iterator[tuple[int, Bytes]]:
    """Yields frames down a chain: the neighbours to each worker, and the frames to the first."""
    for worker, place in neighbors(workers):
        section = torch.tensor([place.source, place.to, len(frames)], dtype=torch.int32)
        yield worker, pack(Header(Kind.CHAIN, step), [section], RAW)
    for frame in frames:
        yield workers[0], frame


def read_relay(frame: Bytes, rank: int, size: int) -> Relay:
    """Returns the neighbours of a worker.

    Raises:
        FrameError: the ranks are no neighbors of `rank`.
    """
    return checked_relay(unpack(frame, [Field(torch.int32, (2,))])[0].tolist(), rank, size)


def checked_relay(ranks: Sequence[int], rank: int, size: int) -> Relay:
    if len(ranks) != 2 or not {*ranks} <= {*range(size)} - {rank}:
        raise FrameError(f"rank {rank} of {size} cannot stand between the ranks {ranks}")
    return Relay(*ranks)


def read_chain(frame: Bytes, rank: int, size: int) -> tuple[Relay, int]:
    """Returns the neighbours of a worker and the number of frames.

    Raises:
        FrameError: the ranks are no neighbors of `rank`, or the chain has no frames.
    """
    *ranks, count = unpack(frame, [Field(torch.int32, (3,))])[0].tolist() or [0]
    if count < 1:
        raise FrameError(f"a chain of {count} frames; at least 1")
    return checked_relay(ranks, rank, size), count


def forward_frames(
    transport: Transport, relay: Relay, count: int, timeout_s: float, label: str
) -> Iterator[Bytes]:
    """Yields frames of the master as they arrive, each already forwarded to the next worker.

    Raises:
        ChainBroken: the chain is broken; the next worker has the BROKEN frame already.
    """
    for number in range(count):
        frame_label = f"{label}, frame {number}, from rank {relay.source}"
        frame = receive_next(transport, relay.source, timeout_s, frame_label)
        if relay.to != MASTER:
            send_next(transport, relay.to, frame, label)
        if is_broken(frame):
            raise ChainBroken(frame_label)
        yield frame
    if relay.to != MASTER:
        # The sends make no progress while this rank computes.
        drain(transport, timeout_s)


def broken_frame(step: int, worker: int) -> Bytes:
    """Returns a BROKEN frame: `worker` gets no further frame of the chain."""
    return pack(Header(Kind.BROKEN, step, worker), [], RAW)


def is_broken(frame: Bytes) -> bool:
    """True for a BROKEN frame. Longer frames are not checked: no checksum is computed."""
    return frame.size < SHORT and read_header(frame).kind is Kind.BROKEN


def receive_next(transport: Transport, source: int, timeout_s: float, label: str) -> Bytes:
    """Returns the next frame of the chain, or a BROKEN frame if its sender died."""
    try:
        return transport.receive(source, timeout_s, label).data
    except PeerLost as lost:
        if source == MASTER or lost.rank != source:
            raise
        return broken_frame(0, transport.rank)


def send_next(transport: Transport, to: int, frame: Bytes, label: str) -> None:
    """Sends a frame to the next worker, and ignores that worker if it is dead."""
    try:
        transport.send(to, frame, label)
    except PeerLost as lost:
        if lost.rank != to:
            raise
        transport.ignore_rank(to)


def drain(transport: Transport, timeout_s: float) -> None:
    """Waits until all frames to living ranks have left."""
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
    """Returns the weights of a step as float32, and forwards each piece of `dtype` as it arrives.

    Raises:
        FrameError: a piece is out of order, or of other weights.
    """
    weights = torch.empty(entries)
    parts = torch.split(weights, piece_entries(entries))
    label = f"the weights of step {step}"
    frames = forward_frames(transport, relay, len(parts), timeout_s, label)
    for number, (part, frame) in enumerate(zip(parts, frames, strict=True)):
        part.copy_(read_piece(frame, step, number, Field(dtype, part.shape)))
    return weights


def read_piece(frame: Bytes, step: int, number: int, due: Field) -> Float[Tensor, " n"]:
    """Returns the entries of one piece."""
    header = read_header(frame)
    if (header.kind, header.step, header.bucket) != (Kind.PART, step, number):
        raise FrameError(
            f"a {header.kind.name} {header.bucket} of step {header.step} arrived; "
            f"piece {number} of the weights of step {step} is due"
        )
    piece = unpack(frame, [due])[0]
    if piece.shape != due.max_shape:
        raise FrameError(f"{len(piece)} weights came; piece {number} has {due.max_shape[0]}")
    return piece
