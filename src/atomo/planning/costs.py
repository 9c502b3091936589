"""What a codec costs on the gradients of a model: encoding, bytes and decoding of each tensor.

Two exchanges with oneself are timed: every tensor in a message of its own, and all in one. If a
message takes something by itself and the rest adds up tensor by tensor, their difference is what
the other messages took, and both are known.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from torch import Tensor

from atomo.codecs import Codec
from atomo.comm_types import REDUCTIONS
from atomo.communicators import Collective, Compressor, Reduction
from atomo.communicators.collective import Addend
from atomo.fusion import Bucket, plan
from atomo.grouping import ONE, Grouping
from atomo.memory import default_memory, make_memory
from atomo.wire import Bytes, Compression

__all__ = ["Cost", "Costs", "Typical", "measure_costs"]

Typical = Callable[[Iterable[float]], float]
"""One time for several."""
HALF_BYTES: Final = 2
LAYERS: Final = Grouping("layer")
MOMENTUM: Final = 0.9  # as runs have it by default; it decides on the memory


@final
@dataclass(frozen=True)
class Cost:
    """Of a message, or of a tensor in one."""

    encode_s: float = 0.0
    decode_s: float = 0.0  # of one worker's
    sent_bytes: float = 0.0


@final
@dataclass(frozen=True)
class Costs:
    """Of one codec under one reduction."""

    spec: str
    """As it was asked for."""
    each: tuple[Cost, ...]
    """What each tensor adds to a message, from the last parameter to the first."""
    message: Cost
    """What a message costs beside."""
    rounds: int
    """How often all ranks wait for each other, a message."""
    holds: bool
    """Whether nothing is encoded before the whole gradient is there."""
    half: bool = False
    """Whether it is added up on its way in half precision."""

    @property
    def sent_bytes(self) -> float:
        """Of a gradient in one message."""
        return self.message.sent_bytes + sum(one.sent_bytes for one in self.each)


@final
class Alone(Collective):
    """One rank, which keeps count of what it would send."""

    def __init__(self) -> None:
        self.rank, self.size, self.wait_s = 0, 1, 0.0
        self.sent_bytes = self.rounds = 0
        self.half = False

    def gather(self, data: Bytes, what: str) -> Iterator[Bytes]:
        del what
        self.sent_bytes += data.size
        self.rounds += 1
        return iter([data])

    def sum(self, addends: Sequence[Addend], what: str) -> None:
        del what
        for addend in addends:
            (field, *_) = addend.carrier.fields(addend.values.shape)
            self.sent_bytes += addend.values.numel() * field.dtype.itemsize
            self.half |= field.dtype.itemsize == HALF_BYTES
        self.rounds += 1

    def broadcast(self, values: Tensor, what: str) -> None:
        del values, what  # they are its own

    def part(self, ranks: Sequence[int], *, one_host: bool) -> "Alone":
        del ranks, one_host
        return self


def measure_costs(
    codec: Codec[Any],
    reduction: str,
    gradient: Mapping[str, Tensor],
    repetitions: int = 3,
    compression: Compression | None = None,
    typical: Typical = min,
) -> Costs:
    """Exchanges `gradient` with oneself; the fastest of `repetitions` counts, or what is typical.

    Args:
        codec: how it is encoded.
        reduction: one of `REDUCTIONS`.
        gradient: float32 tensors by parameter name, in forward order.
        repetitions: how often each exchange is timed, after one time that is not.
        compression: blosc's settings.
        typical: what stands for the times of the repetitions. The fastest is what the exchange
            takes by itself, the mean what it takes beside whatever else the cores do.

    Raises:
        ConfigError: the codec does not go with the reduction.
        CodecError: it cannot carry the gradient.
    """
    kind = REDUCTIONS[reduction]
    fitted = kind.fitted(codec)
    shapes = [(name, tensor.shape) for name, tensor in gradient.items()]
    bench = Bench(kind, fitted, compression or Compression(), typical)
    apart = bench.measure(plan(shapes, fitted, LAYERS), gradient, repetitions)
    one = plan(shapes, fitted, ONE)
    ((whole, rounds),) = bench.measure(one, gradient, repetitions)
    holds = bench.needs_norm or any(part.shared for bucket in one for part in bucket.parts)
    costs = fit(str(codec), [cost for cost, _ in apart], whole, rounds, holds)
    return replace(costs, half=bench.half)


@final
class Bench:
    """Times exchanges with oneself by one reduction."""

    def __init__(
        self,
        kind: type[Reduction[Any]],
        codec: Codec[Any],
        compression: Compression,
        typical: Typical,
    ) -> None:
        self._kind, self._compression, self._typical = kind, compression, typical
        self._memory = kind.default_memory(MOMENTUM) or default_memory(codec, MOMENTUM)
        self.needs_norm = make_memory(self._memory, workers=1).needs_norm
        self.half = False  # as soon as anything was added up so

    def measure(
        self, buckets: Sequence[Bucket], gradient: Mapping[str, Tensor], repetitions: int
    ) -> list[tuple[Cost, int]]:
        """The cost of each bucket, and its rounds."""
        alone = Alone()
        memory = make_memory(self._memory, workers=1)
        compressor = Compressor(memory, self._compression, 1, 0)
        reduction = self._kind(alone, compressor)
        found: list[tuple[Cost, int]] = []
        for bucket in buckets:
            flat = torch.cat([gradient[slot.name].flatten() for slot in bucket.slots])
            if bucket.agreeing:
                compressor.agree(compressor.propose(bucket, flat))
            steps = range(1, repetitions + 2)
            times = [exchange(reduction, alone, bucket, flat, step) for step in steps]
            costs = [cost for cost, _ in times[1:]]
            least = Cost(
                self._typical(cost.encode_s for cost in costs),
                self._typical(cost.decode_s for cost in costs),
                sum(cost.sent_bytes for cost in costs) / len(costs),
            )
            found.append((least, times[-1][1]))
            self.half |= alone.half
        return found


def exchange(
    reduction: Reduction[Any], alone: Alone, bucket: Bucket, flat: Tensor, step: int
) -> tuple[Cost, int]:
    """What one step of one bucket costs, and its rounds."""
    work, out = flat.clone(), torch.zeros_like(flat)
    alone.sent_bytes = alone.rounds = 0
    begin = time.perf_counter()
    finish = reduction.start(bucket, reduction.encode(bucket, work, step), step)
    encoded = time.perf_counter()
    finish(out)
    decoded = time.perf_counter()
    return Cost(encoded - begin, decoded - encoded, float(alone.sent_bytes)), alone.rounds


def fit(spec: str, apart: Sequence[Cost], whole: Cost, rounds: int, holds: bool) -> Costs:
    """Costs by which both exchanges cost what they did, or nearly, and none is below zero."""
    parts = [
        fit_line([getattr(cost, name) for cost in apart], getattr(whole, name))
        for name in ("encode_s", "decode_s", "sent_bytes")
    ]
    message = Cost(*(fixed for fixed, _ in parts))
    each = tuple(Cost(*three) for three in zip(*(rest for _, rest in parts), strict=True))
    return Costs(spec, each, message, rounds, holds)


def fit_line(apart: Sequence[float], whole: float) -> tuple[float, list[float]]:
    """What a message takes by itself, and what each tensor adds.

    Args:
        apart: of messages with one tensor each.
        whole: of the one message with all of them.

    Returns:
        Numbers from 0. With all tensors, a message takes `whole`.
    """
    others = max(len(apart) - 1, 1)
    fixed = min(max((sum(apart) - whole) / others, 0.0), min(whole, min(apart)))
    above = [max(one - fixed, 0.0) for one in apart]
    total, rest = sum(above), whole - fixed
    if total <= 0:
        return fixed, [rest / len(apart)] * len(apart)
    return fixed, [rest * one / total for one in above]
