"""Sum with pieces sent from GPU to GPU; its bits are those of a sum with pieces sent in frames."""

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
    return len(devices) == 1 and all(Law.LOSSLESS in addend.wire_codec.laws for addend in addends)


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
    own = tensors(pieces[rank])
    received = {rank: own}
    for to, source in partners(rank, size):
        send(channel, to, pieces[to], label)
        received[source] = [torch.empty_like(values) for values in own]
        for values in received[source]:
            channel.receive(source, values, timeout_s, label)
    channel.drain(timeout_s)  # the values that were sent are replaced next
    sums = [torch.zeros_like(values) for values in own]
    for source in range(size):  # in the order of ranks: equal runs give equal bits
        for total, values in zip(sums, received[source], strict=True):
            total.add_(values)
    for values, total in zip(own, sums, strict=True):
        values.copy_(total)
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
    return [addend.values for addend in piece]
