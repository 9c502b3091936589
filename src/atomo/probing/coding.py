"""What a codec costs on all ranks of a job at once, since they share cores and memory."""

import statistics
from dataclasses import replace
from typing import Any

from atomo.codecs import Codec
from atomo.planning import Costs, Profile, measure_costs
from atomo.planning.costs import Cost
from atomo.probing.together import Together
from atomo.wire import Compression

__all__ = ["measure_together", "numbers_of"]


def measure_together(
    together: Together,
    codec: Codec[Any],
    reduction: str,
    profile: Profile,
    times: int,
    compression: Compression,
    *,
    master: bool,
) -> Costs:
    """The costs of a codec, in the mean over the ranks, alike on all of them.

    Args:
        together: the ranks.
        codec: how gradients are encoded.
        reduction: how they are averaged.
        profile: has this rank's gradient.
        times: how often each exchange is timed.
        compression: blosc's settings.
        master: whether rank 0 is one: then it decodes while the workers wait, and encodes nothing.
    """
    rank, size = together.collective.rank, together.collective.size
    turns = [{0}, {*range(1, size)}] if master else [{*range(size)}]
    found: Costs | None = None
    for turn in turns:
        together.begin()
        if rank in turn:
            found = measure_costs(
                codec, reduction, profile.gradient, times, compression, statistics.fmean
            )
    assert found is not None
    rows = together.share(numbers_of(found), f"the costs of {codec}")
    encoding = mean(rows[1:] if master else rows)
    decoding = rows[0] if master else encoding
    parts = [
        Cost(encode_s, decode_s, sent_bytes)
        for (encode_s, _, sent_bytes), (_, decode_s, _) in zip(
            threes(encoding), threes(decoding), strict=True
        )
    ]
    return replace(found, message=parts[0], each=tuple(parts[1:]))


def numbers_of(costs: Costs) -> list[float]:
    """Encoding, decoding and bytes: of a message, and then of each tensor."""
    return [
        number
        for one in (costs.message, *costs.each)
        for number in (one.encode_s, one.decode_s, one.sent_bytes)
    ]


def threes(numbers: list[float]) -> list[tuple[float, float, float]]:
    """The inverse."""
    return list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def mean(rows: list[list[float]]) -> list[float]:
    """Column by column."""
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]
