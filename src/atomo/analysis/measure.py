"""Costs and errors of codecs on given gradients: the figures of `atomo bench`.

Times are those of the real path: memory, encoding, packing and checksum in the sender; checking,
unpacking and adding in the receiver. Tables show ratios to the time of a copy of the same gradient,
measured right beside, because absolute times say more about the machine than about the codec.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.codecs.dense_fallback import goes_dense
from atomo.exchange import Compressor
from atomo.exchange.compressor import add_frame
from atomo.fusion import Bucket, plan
from atomo.memory import MEMORIES, default_memory
from atomo.options.grouping import ONE
from atomo.wire import Bytes, Compression

__all__ = ["Measurement", "copy_time", "measure_codec"]


@final
@dataclass(frozen=True)
class Measurement:
    """One codec on one gradient. Times are minima over the repetitions."""

    spec: str
    entries: int
    dense_entries: int  # entries in small vectors, which are dense with any codec
    frame_bytes: int
    encode_s: float
    decode_s: float  # decoded and added to a sum
    copy_s: float
    relative_error: float  # ||decoded - gradient|| / ||gradient||, of the first encoding

    @property
    def bits_per_entry(self) -> float:
        """Bits on the wire for each entry of the gradient."""
        return 8 * self.frame_bytes / self.entries

    @property
    def encode_ratio(self) -> float:
        """Encoding over a copy; lower => faster."""
        return self.encode_s / self.copy_s

    @property
    def decode_ratio(self) -> float:
        """Decoding and adding over a copy; lower => faster."""
        return self.decode_s / self.copy_s


def measure_codec(
    codec: Codec[Any],
    gradient: Mapping[str, Tensor],
    repetitions: int = 5,
    compression: Compression | None = None,
) -> Measurement:
    """Encodes and decodes `gradient` as training would, with the memory that the codec needs.

    Args:
        codec: the codec to measure.
        gradient: float32 tensors by parameter name, in forward order.
        repetitions: number of timed runs of each direction; one more comes before, not timed.
        compression: blosc's settings.
    """
    shapes = [(name, tensor.shape) for name, tensor in gradient.items()]
    (bucket,) = plan(shapes, codec, ONE)
    flat = torch.cat([gradient[slot.name].flatten() for slot in bucket.slots])
    first = encoder(codec, compression)(bucket, flat.clone(), 0)
    sent = torch.zeros_like(flat)
    add_frame(bucket, first, sent, 1.0)
    error = float((sent - flat).norm() / flat.norm().clamp_min(1e-30))
    encode = encoder(codec, compression)
    work = flat.clone()
    encode_times, decode_times, copy_times = [], [], []
    for step in range(repetitions + 1):
        copy_times.append(timed(lambda: work.copy_(flat)))
        encode_times.append(timed(lambda: encode(bucket, work, step)))  # noqa: B023  # called here
        decode_times.append(timed(lambda: add_frame(bucket, first, sent, 0.5)))
    return Measurement(
        str(codec),
        flat.numel(),
        sum(tensor.numel() for tensor in gradient.values() if goes_dense(tensor.shape)),
        first.size,
        min(encode_times[1:]),
        min(decode_times[1:]),
        min(copy_times[1:]),
        error,
    )


def encoder(
    codec: Codec[Any], compression: Compression | None
) -> Callable[[Bucket, Float[Tensor, " n"], int], Bytes]:
    """Returns a function that encodes a bucket as a worker does, with a new memory."""
    memory = MEMORIES[default_memory(codec)]()
    compressor = Compressor(memory, compression or Compression(), worker=1, seed=0)

    def encode(bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> Bytes:
        return compressor.compress(bucket, flat, step)

    return encode


def copy_time(tensor: Tensor, repetitions: int = 5) -> float:
    """Returns the best time of a copy of `tensor`, seconds."""
    out = torch.empty_like(tensor)
    return min(timed(lambda: out.copy_(tensor)) for _ in range(repetitions))


def timed(body: Callable[[], object]) -> float:
    """Returns the seconds that `body` takes."""
    started = time.perf_counter()
    body()
    return time.perf_counter() - started
