"""A bucket's flat gradient to a frame, and a frame into a sum."""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from atomo.codecs import Law
from atomo.errors import CodecError, FrameError
from atomo.fusion import Bucket, Part
from atomo.memory import Memory
from atomo.randomness import derive
from atomo.wire import Bytes, Compression, Header, Kind, pack, unpack

__all__ = ["Compressor", "add_frame"]


def add_frame(bucket: Bucket, frame: Bytes, out: Float[Tensor, " n"], scale: float) -> None:
    """Adds `scale` times the gradient in a frame of `bucket` to `out`, in place.

    Raises:
        FrameError: the frame is not one of this bucket.
    """
    sections = iter(unpack(frame, bucket.fields))
    for part in bucket.parts:
        payload = part.codec.payload(*(next(sections) for _ in part.fields))
        try:
            part.codec.add_decoded(payload, out[part.start : part.stop].view(part.shape), scale)
        except CodecError as error:
            raise FrameError(f"bucket {bucket.number}: {error}") from error


@final
class Compressor:
    """What one worker does to its gradients before they travel.

    Each worker draws its own randomness: it derives from (run seed, worker, step, parameter), so
    that errors average out over workers and a resumed run repeats them exactly.
    """

    def __init__(self, memory: Memory, compression: Compression, worker: int, seed: int) -> None:
        self.memory = memory
        self._compression = compression
        self._worker = worker
        self._seed = seed
        self._sent: dict[int, tuple[Bucket, Bytes]] = {}

    def compress(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, send: Callable[[Bytes], None]
    ) -> None:
        """Hands the frame of a bucket to `send`, then sees to what it left behind.

        `flat` serves as scratch space: afterwards it is no longer the gradient.
        """
        for slot in bucket.slots:
            self.memory.compensate(slot.name, flat[slot.start : slot.stop].view(slot.shape))
        payloads = [self._encode(part, flat, step) for part in bucket.parts]
        sections = [tensor for payload in payloads for tensor in vars(payload).values()]
        header = Header(Kind.GRADIENT, step, self._worker, bucket.number, bucket.layout)
        frame = pack(header, sections, self._compression)
        send(frame)
        if self.memory.keeps:
            self._sent[bucket.number] = bucket, frame
            self._remember(bucket.parts, payloads, flat)

    def take_back(self) -> None:
        """The gradient of the last step never counted: the memory gets what was sent of it."""
        for bucket, frame in self._sent.values():
            sent = torch.zeros(bucket.size)
            add_frame(bucket, frame, sent, 1.0)
            for slot in bucket.slots:
                self.memory.take_back(slot.name, sent[slot.start : slot.stop].view(slot.shape))
        self._sent.clear()

    def _encode(self, part: Part, flat: Float[Tensor, " n"], step: int) -> Any:
        seed = derive(self._seed, "encode", self._worker, step, part.slots[0].name)
        generator = Generator(flat.device).manual_seed(seed)
        gradient = flat[part.start : part.stop].view(part.shape)
        try:
            return part.codec.encode(gradient, generator)
        except CodecError as error:
            names = ", ".join(slot.name for slot in part.slots)
            raise CodecError(f"the gradient of {names}: {error}") from error

    def _remember(
        self, parts: Sequence[Part], payloads: Sequence[Any], flat: Float[Tensor, " n"]
    ) -> None:
        for part, payload in zip(parts, payloads, strict=True):
            if Law.LOSSLESS in part.codec.laws:  # and its payload may be a view of the gradient
                for slot in part.slots:
                    self.memory.forget(slot.name)
                continue
            part.codec.add_decoded(payload, flat[part.start : part.stop].view(part.shape), -1.0)
            for slot in part.slots:
                self.memory.keep(slot.name, flat[slot.start : slot.stop].view(slot.shape))
