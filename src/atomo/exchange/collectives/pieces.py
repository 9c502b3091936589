"""Pieces of a sum: the rank that adds up each piece, the order of the messages, and the frames.

Each vector is cut into chunks, and each chunk into one piece for every rank. A rank adds up its
piece over all ranks. The sum of a chunk travels while the addends of the next chunk do, so that
links between hosts are busy in both directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
import xxhash
from torch import Generator

from atomo.errors import CodecError, FrameError
from atomo.exchange.collectives.collective import Addend
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = ["Piece", "Turn", "add", "chunks_of", "cut", "packed", "turns"]

RAW: Final = Compression(codec="none")
SMALLEST: Final = 30_000  # entries of a piece; lower => more messages, and less at the ends idle
CHUNKS: Final = 16  # of large vectors

Piece = Sequence[Addend]
"""The same stretch of every addend of a sum."""


@final
@dataclass(frozen=True)
class Turn:
    """A message that each rank sends to one rank while it receives one from another."""

    chunk: int
    summed: bool
    """True: the sum of the sender's piece. False: the addend for the receiver's piece."""
    distance: int
    """Rank r sends to rank r + distance and receives from rank r - distance, modulo the ranks."""


def turns(chunks: int, ranks: int) -> list[Turn]:
    """Lists all turns of a sum: the sums of a chunk follow the addends of the next chunk.

    In each turn, no rank receives from two ranks. If all ranks sent to one rank, its link would
    drop packets, and TCP waits 200 ms before it sends a packet again.
    """
    return [
        Turn(chunk, summed, distance)
        for stage in range(chunks + 1)
        for chunk, summed in ((stage, False), (stage - 1, True))
        if 0 <= chunk < chunks
        for distance in range(1, ranks)
    ]


def chunks_of(addends: Sequence[Addend], ranks: int) -> int:
    """Returns the number of chunks of a sum over links between hosts."""
    entries = sum(addend.values.numel() for addend in addends)
    return min(CHUNKS, max(1, entries // (ranks * SMALLEST)))


def cut(addends: Sequence[Addend], ranks: int, chunks: int) -> list[list[Piece]]:
    """Cuts addends into a piece for each rank and chunk. Short vectors have some empty pieces."""
    pieces: list[list[list[Addend]]] = [[[] for _ in range(ranks)] for _ in range(chunks)]
    for addend in addends:
        for number, values in enumerate(torch.tensor_split(addend.values, chunks * ranks)):
            if values.numel():
                chunk, rank = divmod(number, ranks)
                pieces[chunk][rank].append(Addend(values, addend.wire_codec))
    return [[*chunk] for chunk in pieces]


def packed(piece: Piece, label: str) -> Bytes:
    """Packs a piece into a frame."""
    sections = [
        tensor
        for addend in piece
        for tensor in addend.wire_codec.sections(
            addend.wire_codec.encode(addend.values, Generator())
        )
    ]
    return pack(Header(Kind.PIECE, layout_hash=label_hash(label)), sections, RAW)


def add(frame: Bytes, piece: Piece, label: str) -> None:
    """Adds a frame to a piece, in place.

    Raises:
        FrameError: the frame is of another piece.
    """
    header = read_header(frame)
    if header.kind is not Kind.PIECE or header.layout_hash != label_hash(label):
        raise FrameError(
            f"a {header.kind.name} came where {label} was expected: do all hosts run the same "
            "version with the same options?"
        )
    fields = [field for addend in piece for field in addend.wire_codec.fields(addend.values.shape)]
    sections = iter(unpack(frame, fields))
    for addend in piece:
        payload = addend.wire_codec.assemble(sections)
        try:
            addend.wire_codec.add_decoded(payload, addend.values)
        except CodecError as error:
            raise FrameError(f"{label}: {error}") from error


def label_hash(label: str) -> int:
    """Hashes the label of a sum.

    All ranks give a sum the same label, so that its hash in the header tells a piece of another
    sum, or of another step, before it is added: pieces have no numbers of their own.
    """
    return xxhash.xxh32_intdigest(label.encode())
