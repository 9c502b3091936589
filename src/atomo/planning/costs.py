"""Measured costs of a codec on a model's gradients: encoding, bytes and decoding of each tensor.

Two exchanges of one rank with itself are timed: every tensor in a message of its own, and all
tensors in one message. The model is a fixed cost of each message plus a cost of each tensor; the
difference of the two exchanges gives the fixed cost.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from torch import Tensor

from atomo.codecs import Codec
from atomo.config.comm_types import REDUCTIONS
from atomo.exchange import Collective, Compressor, Reduction
from atomo.exchange.collectives.collective import Addend
from atomo.fusion import Bucket, plan
from atomo.memory import default_memory, make_memory
from atomo.options.grouping import ONE, Grouping
from atomo.wire import Bytes, Compression

__all__ = ["Cost", "Costs", "Statistic", "measure_costs"]

Statistic = Callable[[Iterable[float]], float]
"""Reduces several times to a single number."""
HALF_BYTES: Final = 2
LAYERS: Final = Grouping("layer")
MOMENTUM: Final = 0.9  # the default of runs; the default memory depends on it


@final
@dataclass(frozen=True)
class Cost:
    """Cost of a message, or of a tensor in a message."""

    encode_s: float = 0.0
    decode_s: float = 0.0  # of one worker's
    sent_bytes: float = 0.0


@final
@dataclass(frozen=True)
class Costs:
    """Costs of one codec under one reduction."""

    spec: str
    """The codec, as its user writes it."""
    each: tuple[Cost, ...]
    """Cost that each tensor adds to a message, from the last parameter to the first."""
    message: Cost
    """Fixed cost of a message."""
    rounds: int
    """Number of times that all ranks wait for each other in an exchange of a message."""
    holds: bool
    """True if encoding begins only when the whole gradient is there."""
    half: bool = False
    """True if ranks add up values in half precision."""

    @property
    def sent_bytes(self) -> float:
        """Bytes of a gradient in one message."""
        return self.message.sent_bytes + sum(cost.sent_bytes for cost in self.each)


@final
class SingleRank(Collective):
    """A group of one rank, which counts the bytes that it would send."""

    def __init__(self) -> None:
        self.rank, self.size, self.wait_s = 0, 1, 0.0
        self.sent_bytes = self.rounds = 0
        self.half = False

    def gather(self, data: Bytes, label: str) -> Iterator[Bytes]:
        del label
        self.sent_bytes += data.size
        self.rounds += 1
        return iter([data])

    def swap(self, pieces: Sequence[Bytes], label: str) -> list[Bytes]:
        del label
        self.sent_bytes += sum(piece.size for piece in pieces)
        self.rounds += 1
        return [*pieces]

    def sum(self, addends: Sequence[Addend], label: str) -> None:
        del label
        for addend in addends:
            (field, *_) = addend.wire_codec.fields(addend.values.shape)
            self.sent_bytes += addend.values.numel() * field.dtype.itemsize
            self.half |= field.dtype.itemsize == HALF_BYTES
        self.rounds += 1

    def broadcast(self, values: Tensor, label: str, root: int = 0) -> None:
        del values, label, root  # the rank has its own values already

    def split(self, ranks: Sequence[int], *, one_host: bool) -> "SingleRank":
        del ranks, one_host
        return self


def measure_costs(
    codec: Codec[Any],
    reduction: str,
    gradient: Mapping[str, Tensor],
    repetitions: int = 3,
    compression: Compression | None = None,
    typical: Statistic = min,
) -> Costs:
    """Times exchanges of `gradient` by one rank with itself.

    Args:
        codec: encodes the gradient.
        reduction: one of `REDUCTIONS`.
        gradient: float32 tensors by parameter name, in forward order.
        repetitions: timed exchanges; one more comes before and is not timed.
        compression: blosc's settings.
        typical: reduces the times of the repetitions to a single time. The minimum is the time of
            the exchange alone; the mean includes the delay by other work on the cores.

    Raises:
        ConfigError: the codec does not go with the reduction.
        CodecError: the codec cannot carry the gradient.
    """
    kind = REDUCTIONS[reduction]
    fitted = kind.adapt_codec(codec)
    shapes = [(name, tensor.shape) for name, tensor in gradient.items()]
    timer = ExchangeTimer(kind, fitted, compression or Compression(), typical)
    apart = timer.measure(plan(shapes, fitted, LAYERS), gradient, repetitions)
    buckets = plan(shapes, fitted, ONE)
    ((whole, rounds),) = timer.measure(buckets, gradient, repetitions)
    holds = timer.needs_norm or any(part.scale_codec for bucket in buckets for part in bucket.parts)
    costs = fit(str(codec), [cost for cost, _ in apart], whole, rounds, holds)
    return replace(costs, half=timer.half)


@final
class ExchangeTimer:
    """Times exchanges of one rank with itself by one reduction."""

    def __init__(
        self,
        kind: type[Reduction[Any, Any]],
        codec: Codec[Any],
        compression: Compression,
        typical: Statistic,
    ) -> None:
        self._kind, self._compression, self._typical = kind, compression, typical
        self._memory = kind.default_memory(MOMENTUM) or default_memory(codec, MOMENTUM)
        self.needs_norm = make_memory(self._memory, workers=1).needs_norm
        self.half = False  # True once a sum was in half precision

    def measure(
        self, buckets: Sequence[Bucket], gradient: Mapping[str, Tensor], repetitions: int
    ) -> list[tuple[Cost, int]]:
        """Returns the cost of each bucket, and the rounds of each."""
        group = SingleRank()
        memory = make_memory(self._memory, workers=1)
        compressor = Compressor(memory, self._compression, 1, 0)
        reduction = self._kind(group, compressor)
        costs_by_bucket: list[tuple[Cost, int]] = []
        for bucket in buckets:
            flat = torch.cat([gradient[slot.name].flatten() for slot in bucket.slots])
            if bucket.agreeing:
                compressor.agree(compressor.propose(bucket, flat))
            steps = range(1, repetitions + 2)
            times = [exchange(reduction, group, bucket, flat, step) for step in steps]
            costs = [cost for cost, _ in times[1:]]
            typical = Cost(
                self._typical(cost.encode_s for cost in costs),
                self._typical(cost.decode_s for cost in costs),
                sum(cost.sent_bytes for cost in costs) / len(costs),
            )
            costs_by_bucket.append((typical, times[-1][1]))
            self.half |= group.half
        return costs_by_bucket


def exchange(
    reduction: Reduction[Any, Any], group: SingleRank, bucket: Bucket, flat: Tensor, step: int
) -> tuple[Cost, int]:
    """Times one step of one bucket; returns its cost and its rounds."""
    work, out = flat.clone(), torch.zeros_like(flat)
    group.sent_bytes = group.rounds = 0
    begin = time.perf_counter()
    payload = reduction.encode(bucket, work, step)
    encoded = time.perf_counter()
    received = reduction.exchange(bucket, payload, step)
    reduction.decode(bucket, received, step, out)
    decoded = time.perf_counter()
    return Cost(encoded - begin, decoded - encoded, float(group.sent_bytes)), group.rounds


def fit(spec: str, apart: Sequence[Cost], whole: Cost, rounds: int, holds: bool) -> Costs:
    """Fits nonnegative costs to both exchanges.

    Args:
        spec: the codec.
        apart: the costs of messages with one tensor each.
        whole: the cost of one message with all tensors.
        rounds: of each message.
        holds: True if encoding needs the whole gradient.
    """
    parts = [
        fit_line([getattr(cost, name) for cost in apart], getattr(whole, name))
        for name in ("encode_s", "decode_s", "sent_bytes")
    ]
    message = Cost(*(fixed for fixed, _ in parts))
    rows = zip(*(by_tensor for _, by_tensor in parts), strict=True)
    return Costs(spec, tuple(Cost(*row) for row in rows), message, rounds, holds)


def fit_line(apart: Sequence[float], whole: float) -> tuple[float, list[float]]:
    """Splits a message's time into a fixed part and a part of each tensor.

    Args:
        apart: times of messages with one tensor each.
        whole: time of a single message with all tensors.

    Returns:
        Nonnegative numbers; the fixed part and all tensors add up to `whole`.
    """
    extra_messages = max(len(apart) - 1, 1)
    fixed = min(max((sum(apart) - whole) / extra_messages, 0.0), min(whole, min(apart)))
    above = [max(time - fixed, 0.0) for time in apart]
    total, variable = sum(above), whole - fixed
    if total <= 0:
        return fixed, [variable / len(apart)] * len(apart)
    return fixed, [variable * share / total for share in above]
