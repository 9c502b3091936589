"""Costs of a codec while all ranks of a job encode and decode: they share cores and memory."""

import statistics
from dataclasses import replace
from typing import Any

from atomo.codecs import Codec
from atomo.planning import Costs, Profile, measure_costs
from atomo.planning.costs import Cost
from atomo.planning.probe.timer import SynchronizedTimer
from atomo.wire import Compression

__all__ = ["cost_numbers", "measure_rank_costs"]


def measure_rank_costs(
    timer: SynchronizedTimer,
    codec: Codec[Any],
    reduction: str,
    profile: Profile,
    times: int,
    compression: Compression,
    *,
    master: bool,
) -> Costs:
    """Measures the costs of a codec: the mean over the ranks, the same on all ranks.

    Args:
        timer: the ranks.
        codec: encodes the gradients.
        reduction: averages the gradients.
        profile: has this rank's gradient.
        times: number of timed exchanges.
        compression: blosc's settings.
        master: True if rank 0 is a master: it encodes nothing and decodes while the workers wait.
    """
    rank, size = timer.collective.rank, timer.collective.size
    turns = [{0}, {*range(1, size)}] if master else [{*range(size)}]
    own: Costs | None = None
    for turn in turns:
        timer.barrier()
        if rank in turn:
            own = measure_costs(
                codec, reduction, profile.gradient, times, compression, statistics.fmean
            )
    assert own is not None
    rows = timer.gather(cost_numbers(own), f"the costs of {codec}")
    encoding = column_means(rows[1:] if master else rows)
    decoding = rows[0] if master else encoding
    parts = [
        Cost(encode_s, decode_s, sent_bytes)
        for (encode_s, _, sent_bytes), (_, decode_s, _) in zip(
            cost_triples(encoding), cost_triples(decoding), strict=True
        )
    ]
    return replace(own, message=parts[0], each=tuple(parts[1:]))


def cost_numbers(costs: Costs) -> list[float]:
    """Returns seconds to encode, seconds to decode and bytes: of a message, then of each tensor."""
    return [
        number
        for cost in (costs.message, *costs.each)
        for number in (cost.encode_s, cost.decode_s, cost.sent_bytes)
    ]


def cost_triples(numbers: list[float]) -> list[tuple[float, float, float]]:
    """Groups numbers by three: the inverse of `cost_numbers`."""
    return list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def column_means(rows: list[list[float]]) -> list[float]:
    """Returns the mean of each column."""
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]
