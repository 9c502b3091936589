"""A sum whose pieces go from GPU to GPU, to the bits of one whose pieces travel in frames."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from atomo.codecs import Law
from atomo.exchange.collectives.collective import Addend
from atomo.exchange.collectives.pieces import Piece, cut
from atomo.transports import DeviceChannel

__all__ = ["is_unrounded", "sum_on_device"]


def is_unrounded(addends: Sequence[Addend]) -> bool:
    """Returns True if addends lie on one device and no wire codec rounds them."""
    devices = {addend.values.device for addend in addends}
    return len(devices) == 1 and all(Law.LOSSLESS in one.wire_codec.laws for one in addends)


def sum_on_device(
    addends: Sequence[Addend],
    channel: DeviceChannel,
    rank: int,
    size: int,
    timeout_s: float,
    label: str,
) -> None:
    """Replaces addends by their sum over all ranks: a reduce-scatter and an all-gather."""
    (pieces,) = cut(addends, size, 1)
    came = {rank: [one.values for one in pieces[rank]]}
    for to, source in partners(rank, size):
        send(channel, to, pieces[to], label)
        came[source] = [torch.empty_like(one) for one in came[rank]]
        for room in came[source]:
            channel.receive(source, room, timeout_s, label)
    channel.drain(timeout_s)  # the values that were sent are replaced next
    total = [torch.zeros_like(one) for one in came[rank]]
    for one in range(size):  # in the order of ranks: equal runs give equal bits
        for whole, part in zip(total, came[one], strict=True):
            whole.add_(part)
    for own, whole in zip(came[rank], total, strict=True):
        own.copy_(whole)
    for to, source in partners(rank, size):
        send(channel, to, pieces[rank], f"the sum of {label}")
        for values in tensors(pieces[source]):
            channel.receive(source, values, timeout_s, f"the sum of {label}")
    channel.drain(timeout_s)


def partners(rank: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the receiver and the sender of each turn: no rank receives from two at a time."""
    return (((rank + step) % size, (rank - step) % size) for step in range(1, size))


def send(channel: DeviceChannel, to: int, piece: Piece, label: str) -> None:
    for values in tensors(piece):
        channel.send(to, values, label)


def tensors(piece: Piece) -> list[Tensor]:
    return [one.values for one in piece]
