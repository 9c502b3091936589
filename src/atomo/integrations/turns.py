"""A sum over a process group whose ranks send to each other one by one, chunk after chunk.

Its own collectives move one thing after the other: while pieces are packed and added up, links are
idle. Here the next turns are on their way meanwhile.
"""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators.collective import Addend
from atomo.communicators.pieces import Piece, Turn, chunks_of, cut, packed
from atomo.communicators.summation import Summation

__all__ = ["sum_in_turns"]

AHEAD: Final = 3  # turns that are sent and waited for before they come; lower => idle links
SHAPES: Final = 4096  # of pieces, whose lengths are remembered


def sum_in_turns(
    addends: Sequence[Addend], group: dist.ProcessGroup, what: str, timeout: timedelta
) -> None:
    """Replaces addends on the CPU by their sums over a group that moves what lies there.

    Args:
        addends: as many on every rank, of the same sizes and carriers.
        group: nobody else sends in it.
        what: names them in errors.
        timeout: the longest wait for another rank.

    Raises:
        RuntimeError: another rank did not answer, or is gone.
    """
    rank, size = group.rank(), group.size()
    chunks = chunks_of(addends, size)
    pieces = cut(addends, size, chunks)
    work = Summation(addends, rank, size, chunks, what)
    leaving: list[tuple[dist.Work, Tensor]] = []  # gloo reads them until they have left
    coming: deque[tuple[dist.Work, Tensor]] = deque()
    asked = sent = 0
    for number, turn in enumerate(work.turns):
        for ahead in work.turns[asked : number + 1 + AHEAD]:
            coming.append(receive(ahead, pieces[ahead.chunk], group))
            asked += 1
        for ahead in work.turns[sent : number + 1 + AHEAD]:
            to = (rank + ahead.distance) % size
            if (frame := work.frame(ahead, to)) is None:
                break
            data = torch.from_numpy(frame)
            leaving.append((begun(dist.isend(data, group=group, group_dst=to)), data))
            sent += 1
        operation, data = coming.popleft()
        operation.wait(timeout)
        work.take(turn, (rank - turn.distance) % size, data.numpy())
    for operation, _ in leaving:
        operation.wait(timeout)


def receive(
    turn: Turn, pieces: Sequence[Piece], group: dist.ProcessGroup
) -> tuple[dist.Work, Tensor]:
    """Begins to receive what comes at a turn, and where it will be."""
    source = (group.rank() - turn.distance) % group.size()
    piece = pieces[source if turn.summed else group.rank()]
    shape = tuple((one.values.numel(), one.carrier) for one in piece)
    data = torch.empty(length_of(shape), dtype=torch.uint8)
    return begun(dist.irecv(data, group=group, group_src=source)), data


def begun(work: dist.Work | None) -> dist.Work:
    """What PyTorch has begun: nothing only where a process is not in the group."""
    assert work is not None
    return work


@lru_cache(SHAPES)
def length_of(shape: Sequence[tuple[int, Codec[object]]]) -> int:
    """The bytes of a piece of such addends, whatever they hold."""
    return packed([Addend(torch.zeros(size), carrier) for size, carrier in shape], "").size
