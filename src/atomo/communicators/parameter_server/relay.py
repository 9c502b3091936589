"""Weights that go from rank to rank, so that the master's link carries them once.

The workers that are free when a step opens form a chain in rank order. Each is told who is before
and behind it, and the weights come in pieces, each of which it hands on unopened while the next
comes: W workers take about as long as one. Who is still busy then is in no chain and holds nobody.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Field
from atomo.communicators.parameter_server.messages import RAW
from atomo.errors import FrameError
from atomo.transports import Transport
from atomo.wire import Bytes, Flag, Header, Kind, pack, read_header, unpack

__all__ = ["Relay", "chain_frames", "read_relay", "receive_relayed"]

SMALLEST: Final = 1 << 15  # entries of a piece; lower => more messages
PIECES: Final = 64  # of large weights; higher => less waiting for a whole piece at each worker
MASTER: Final = 0


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


def chain_frames(
    step: int, weights: Float[Tensor, " n"], flags: Mapping[int, Flag]
) -> Iterator[tuple[int, Bytes]]:
    """What the master sends, and to whom: to each its place, and the pieces to the first."""
    links = [MASTER, *flags, MASTER]
    for (source, worker), to in zip(pairwise(links[:-1]), links[2:], strict=True):
        places = torch.tensor([source, to], dtype=torch.int32)
        yield worker, pack(Header(Kind.RELAY, step, flags=flags[worker]), [places], RAW)
    for number, piece in enumerate(torch.split(weights, piece_entries(len(weights)))):
        yield links[1], pack(Header(Kind.PART, step, bucket=number), [piece], RAW)


def read_relay(frame: Bytes, rank: int, size: int) -> Relay:
    """A worker's place.

    Raises:
        FrameError: there is no such place.
    """
    places = unpack(frame, [Field(torch.int32, (2,))])[0].tolist()
    others = {*range(size)} - {rank}
    if len(places) != 2 or not {*places} <= others:
        raise FrameError(f"rank {rank} of {size} is to stand between the ranks {places}")
    return Relay(*places)


def receive_relayed(
    transport: Transport, relay: Relay, step: int, entries: int, timeout_s: float
) -> Float[Tensor, " n"]:
    """The weights of a step, of which each piece is handed on as it comes.

    Raises:
        FrameError: a piece is not the next one, or not of these weights.
    """
    weights = torch.empty(entries)
    for number, part in enumerate(torch.split(weights, piece_entries(entries))):
        what = f"piece {number} of the weights of step {step}"
        frame = transport.receive(relay.source, timeout_s, what).data
        part.copy_(read_piece(frame, step, number, len(part)))
        if relay.to != MASTER:
            transport.send(relay.to, frame, what)
    if relay.to != MASTER:
        # Nothing moves what is still here once this rank computes.
        transport.drain(timeout_s)
    return weights


def read_piece(frame: Bytes, step: int, number: int, entries: int) -> Float[Tensor, " n"]:
    """The entries of one piece."""
    header = read_header(frame)
    if (header.kind, header.step, header.bucket) != (Kind.PART, step, number):
        raise FrameError(
            f"a {header.kind.name} {header.bucket} of step {header.step} came; "
            f"piece {number} of the weights of step {step} is due"
        )
    piece = unpack(frame, [Field(torch.float32, (entries,))])[0]
    if len(piece) != entries:
        raise FrameError(f"{len(piece)} weights came; piece {number} has {entries}")
    return piece
