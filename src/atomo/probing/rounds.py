"""The links among ranks without a master: the exchange itself, of a few messages and of a larger.

They go as in a step: all begin, then all are waited for, so that what overlaps there overlaps here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators import Collective, Compressor, Reduction
from atomo.fusion import Bucket, plan
from atomo.grouping import ONE
from atomo.memory import default_memory, make_memory
from atomo.planning import Costs
from atomo.probing.link import Line
from atomo.wire import Compression

__all__ = ["measure_rounds"]

FEW: Final = 8  # messages
SAMPLE: Final = 2**19  # bytes of the larger one, unless the least tensor alone has more
REPETITIONS: Final = 3


def measure_rounds(
    kind: type[Reduction[Any]],
    codec: Codec[Any],
    collective: Collective,
    gradient: Mapping[str, Tensor],
    costs: Costs,
) -> Line:
    """Seconds of a message over bytes of it that a rank gives. All ranks do so together.

    Args:
        kind: how a message gets from rank to rank.
        codec: as `kind` has it fitted.
        collective: connects the ranks.
        gradient: by parameter name, in forward order.
        costs: of the codec: what each tensor has in bytes.
    """
    memory = make_memory(kind.memory or default_memory(codec, 0.0), workers=collective.size)
    compressor = Compressor(memory, Compression(), collective.rank + 1, 0)
    reduction = kind(collective, compressor)
    *sent_bytes, beside = agreed_bytes(collective, costs)
    pairs = zip(reversed(list(gradient)), sent_bytes, strict=True)
    least = sorted(pairs, key=lambda it: it[::-1])
    few = [alone(name, gradient, codec, number) for number, (name, _) in enumerate(least[:FEW])]
    sample = chosen(least, beside)
    many = replace(bucket_of([name for name, _ in sample], gradient, codec), number=FEW)
    steps = iter(range(1, 2 * REPETITIONS + 3))

    def seconds(buckets: Sequence[Bucket]) -> float:
        return exchanged(reduction, compressor, collective, buckets, gradient, next(steps))

    for buckets in (few, [many]):  # once for what is made at first
        seconds(buckets)
    few_s = median(seconds(few) for _ in range(REPETITIONS)) / len(few)
    many_s = median(seconds([many]) for _ in range(REPETITIONS))
    bytes_few = sum(sent for _, sent in least[:FEW]) / len(few)
    bytes_many = sum(sent for _, sent in sample)
    return Line.through((beside + bytes_few, few_s), (beside + bytes_many, many_s))


def agreed_bytes(collective: Collective, costs: Costs) -> list[float]:
    """Of each tensor, then of a message: the most that a rank has, so that all choose alike."""
    mine = np.array([one.sent_bytes for one in (*costs.each, costs.message)])
    found = collective.gather(mine.view(np.uint8), "the bytes of what is measured")
    most: list[float] = np.maximum.reduce([one.view(np.float64) for one in found]).tolist()
    return most


def chosen(least: Sequence[tuple[str, float]], beside: float) -> list[tuple[str, float]]:
    """Tensors for the larger message and their bytes, the least first."""
    total, found = beside, list(least[:1])
    for one in least[1:]:
        total += one[1]
        if total > SAMPLE:
            break
        found.append(one)
    return found


def alone(name: str, gradient: Mapping[str, Tensor], codec: Codec[Any], number: int) -> Bucket:
    """A message of one tensor."""
    return replace(bucket_of([name], gradient, codec), number=number)


def bucket_of(names: Sequence[str], gradient: Mapping[str, Tensor], codec: Codec[Any]) -> Bucket:
    """One message of these tensors."""
    (bucket,) = plan([(name, gradient[name].shape) for name in names], codec, ONE)
    return bucket


def exchanged(
    reduction: Reduction[Any],
    compressor: Compressor,
    collective: Collective,
    buckets: Sequence[Bucket],
    gradient: Mapping[str, Tensor],
    step: int,
) -> float:
    """Seconds on the links: handing over, and waiting for others who begin at the same time."""
    encoded = []
    for bucket in buckets:
        flat = torch.cat([gradient[slot.name].flatten() for slot in bucket.slots])
        if compressor.memory.needs_norm:
            compressor.memory.begin(float(flat.norm()))
        if bucket.agreeing:
            compressor.agree(compressor.propose(bucket, flat))
        encoded.append(reduction.encode(bucket, flat, step))
    for _ in collective.gather(np.zeros(1, np.uint8), "the begin of a message that measures"):
        pass
    waited, began = collective.wait_s, time.perf_counter()
    pairs = zip(buckets, encoded, strict=True)
    finishes = [reduction.start(bucket, one, step) for bucket, one in pairs]
    started_s = time.perf_counter() - began
    device = next(iter(gradient.values())).device
    for bucket, finish in zip(buckets, finishes, strict=True):
        finish(torch.zeros(bucket.size, device=device))
    return started_s + collective.wait_s - waited
