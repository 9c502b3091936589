"""Compression of a flat bucket into a frame, and addition of frames to a sum."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from atomo.codecs import Codec
from atomo.codecs.rows import RowGradient
from atomo.core.devices import AsyncScalars
from atomo.core.randomness import derive
from atomo.errors import CodecError, FrameError, FrameFault
from atomo.fusion import Bucket, Part
from atomo.kernels.backends import copies_half
from atomo.memory import Layout, Memory
from atomo.wire import Bytes, Compression, Header, Kind, pack, unpack

__all__ = [
    "Compressor",
    "add_frame",
    "add_frames",
    "batch_of",
    "finish",
    "gradient_of",
    "layout",
    "replace_gradient",
]

BATCH: Final = 16
"""Number of frames of a bucket that are added together. More => fewer passes over the sum, and a
longer wait for the first frame. A batch of joined payloads should fit in a cache."""


def add_frame(bucket: Bucket, frame: Bytes, out: Float[Tensor, " n"], scale: float) -> None:
    """Adds `scale` times the gradient in a frame of `bucket` to `out`, in place.

    Raises:
        FrameError: the frame is not of this bucket.
    """
    tensors = unpack(frame, bucket.fields)
    sections = iter(tensors)
    for part in bucket.parts:
        payload, own = part.codec.assemble(sections), gradient_of(part, out)
        try:
            part.codec.add_decoded(payload, own, scale)
        except CodecError as error:
            raise undecodable(bucket, tensors, error) from error
        replace_gradient(part, out, own)


def undecodable(bucket: Bucket, tensors: Sequence[Tensor], error: CodecError) -> FrameError:
    """Makes the error for sections of a frame that a codec cannot decode."""
    numbers = (tensor for tensor in tensors if tensor.is_floating_point())
    finite = all(bool(tensor.isfinite().all()) for tensor in numbers)
    fault = error.fault if finite else FrameFault.NUMBERS
    return FrameError(f"bucket {bucket.number}: {error}", fault)


def batch_of(bucket: Bucket, device: torch.device) -> int:
    """Returns the number of frames of a bucket that are added together.

    All ranks must add the same frames in the same order. If a codec joins the frames of a batch,
    the batches must be the same too (the last batch may be smaller). Then the sum has the same
    bits on all ranks.

    Args:
        bucket: the bucket of the frames.
        device: the device of the sum.
    """
    if any(part.codec.batch_decodes for part in bucket.parts):
        return BATCH
    # These codecs give the bits of one frame after another, so that batches may differ between
    # ranks. A batch waits for its last frame, but saves launches and passes over the sum on a GPU.
    in_turn = any(part.codec.batch_decodes_on_gpu for part in bucket.parts)
    return BATCH if in_turn and device.type != "cpu" else 1


def add_frames(
    bucket: Bucket, frames: Sequence[Bytes], out: Float[Tensor, " n"], scale: float
) -> None:
    """Adds `scale` times the gradient in each frame of a batch of `bucket` to `out`, in place.

    Raises:
        FrameError: a frame is not of this bucket.
    """
    sections = [*map(iter, bucket.sections.unpack_all(frames))]
    payloads = [[part.codec.assemble(own) for own in sections] for part in bucket.parts]
    try:
        for codec, numbers in bucket.by_codec.items():
            parts = [bucket.parts[number] for number in numbers]
            codec.add_parts(
                [payloads[number] for number in numbers],
                out,
                [part.place for part in parts],
                [part.shape for part in parts],
                scale,
            )
        for part, own in zip(bucket.parts, payloads, strict=True):
            if not part.adjacent:
                total = gradient_of(part, out)
                part.codec.add_all(own, total, scale)
                replace_gradient(part, out, total)
    except CodecError as error:
        raise FrameError(f"bucket {bucket.number}: {error}") from error


def finish(bucket: Bucket, mean: Float[Tensor, " n"]) -> None:
    """Turns the mean gradient of a bucket into the aggregate that its codecs define, in place."""
    for part in bucket.finished:
        own = gradient_of(part, mean)
        part.codec.finish(own)
        replace_gradient(part, mean, own)


@final
class Compressor:
    """The memory and the codecs of one worker: gradients become frames.

    The seed of a random generator derives from (run seed, worker, step, parameter). So errors are
    independent between workers, and a resumed run repeats the draws exactly.
    """

    def __init__(
        self,
        memory: Memory,
        compression: Compression,
        worker: int,
        seed: int,
        late_share: float = 1.0,
        rows: Mapping[str, RowGradient] = MappingProxyType({}),
    ) -> None:
        """Makes a compressor.

        Args:
            memory: the memory of the worker.
            compression: the compression of the frames.
            worker: the number of the worker in frames.
            seed: the seed of the run.
            late_share: the share of a late gradient, which is in no mean, that is sent again.
            rows: the row gradients of the current step, by parameter. Each of these parameters is
                a part of its own, and has no values in the flat gradient of its bucket. The caller
                may fill the mapping at every step.
        """
        self._rows = rows
        self.memory, self.seed = memory, seed
        self.late_share = late_share
        self._compression = compression
        self._worker = worker
        self._sent: dict[int, tuple[Bucket, Bytes, torch.device]] = {}
        self._agreed: dict[str, float] = {}  # by the first parameter of a part

    def begin(self, gradients: Iterable[Float[Tensor, " n"]]) -> None:
        """Gives the memory the norm of the whole gradient of the step to come.

        Raises:
            CodecError: the norm is not finite, and the memory needs it.
        """
        norms = AsyncScalars(*(flat.norm() for flat in gradients)).values()
        self.memory.begin(math.hypot(*norms))

    def compress(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> Bytes:
        """Encodes a bucket into a frame; the memory keeps the residual.

        `flat` is scratch space: afterwards it is no longer the gradient. Several threads may
        compress different buckets at the same time.
        """
        return self.frame(bucket, self.encode(bucket, flat, step), step, flat.device)

    def frame(
        self, bucket: Bucket, payloads: Sequence[Any], step: int, device: torch.device
    ) -> Bytes:
        """Packs the payloads of a gradient on a device into a frame."""
        sections = [
            tensor
            for part, payload in zip(bucket.parts, payloads, strict=True)
            for tensor in part.codec.sections(payload)
        ]
        header = Header(Kind.GRADIENT, step, self._worker, bucket.number, bucket.layout_hash)
        frame = pack(header, sections, self._compression)
        if self.memory.feeds_back:
            self._sent[bucket.number] = bucket, frame, device
        return frame

    def encode(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> list[Any]:
        """Encodes each part of a bucket. Returns the payloads, one for each part."""
        runs = groupby(bucket.parts, lambda part: part.codec if part.codec.batch_encodes else None)
        return [
            payload
            for codec, parts in runs
            for payload in self._payloads(codec, [*parts], flat, step)
        ]

    def propose(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> dict[str, float]:
        """Returns the scales that this rank proposes, by the first parameter of a part.

        Raises:
            CodecError: a codec cannot encode the gradient.
        """
        scales = {}
        for part in bucket.parts:
            if part.scale_codec is not None:
                with named(part):
                    scales[part.slots[0].name] = part.scale_codec.requested_scale(
                        gradient_of(part, flat)
                    )
        return scales

    def agree(self, scales: Mapping[str, float]) -> None:
        """Encodes with these scales from now on."""
        self._agreed = dict(scales)

    def take_back(self) -> None:
        """Gives the late share of the last gradient, which is in no mean, back to the memory."""
        for bucket, frame, device in self._sent.values():
            sent = torch.zeros(bucket.size)
            add_frame(bucket, frame, sent, self.late_share)
            self.keep(bucket, sent.to(device))
        self._sent.clear()

    def keep(self, bucket: Bucket, sent: Float[Tensor, " n"]) -> None:
        """Gives a sent bucket that is in no mean to the memory, if that has error feedback."""
        if self.memory.feeds_back:
            for part in bucket.parts:
                self.memory.take_back(layout(part), sent[part.start : part.stop])

    def _payloads(
        self,
        gathering: Codec[Any] | None,
        parts: Sequence[Part],
        flat: Float[Tensor, " n"],
        step: int,
    ) -> Iterator[Any]:
        """Yields the payload of each part; some codecs encode several parts together."""
        if gathering is None:
            yield from (self._encode(part, flat, step) for part in parts)
            return
        gradients = [self._readable(gathering, self._whole(part, flat)) for part in parts]
        layouts, generators = map(layout, parts), [self._generator(part, step) for part in parts]
        payloads = self.memory.encode_all(gathering, gradients, [*layouts], generators)
        for part in parts:
            with named(part):
                yield next(payloads)

    def _encode(self, part: Part, flat: Float[Tensor, " n"], step: int) -> Any:
        generator = self._generator(part, step)
        scale = self._agreed.get(part.slots[0].name)
        codec = (
            part.codec
            if part.scale_codec is None or scale is None
            else part.scale_codec.with_scale(scale)
        )
        rows = self._rows.get(part.slots[0].name)
        with named(part):
            if rows is not None and codec.encodes_rows and self.memory.encodes_rows:
                return self.memory.encode_rows(codec, rows, layout(part), generator)
            gradient = self._readable(codec, self._whole(part, flat))
            return self.memory.encode(codec, gradient, layout(part), generator)

    def _generator(self, part: Part, step: int) -> Generator:
        worker = 0 if part.codec.shared_seed else self._worker
        seed = derive(self.seed, "encode", worker, step, part.slots[0].name)
        return Generator().manual_seed(seed)  # on the CPU: the same draws on all devices

    def _whole(self, part: Part, flat: Float[Tensor, " n"]) -> Float[Tensor, "..."]:
        """Returns the gradient of a part, after writing its rows, if any, to the flat gradient."""
        gradient = gradient_of(part, flat)
        if (rows := self._rows.get(part.slots[0].name)) is not None:
            rows.write_to(gradient.view(rows.shape))
        return gradient

    def accepts_half(self, bucket: Bucket, device: torch.device) -> bool:
        """Returns True if most of a bucket is encoded in half precision, without a float32 copy."""
        read = sum(part.stop - part.start for part in bucket.parts if part.codec.accepts_half)
        return self.memory.accepts_half and not copies_half(device) and 2 * read > bucket.size

    def _readable(self, codec: Codec[Any], gradient: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Returns the gradient, in float32 unless both codec and memory accept half precision."""
        accepted = codec.accepts_half and self.memory.accepts_half
        return gradient if accepted else gradient.float()


def gradient_of(part: Part, flat: Float[Tensor, " n"]) -> Float[Tensor, "..."]:
    """Returns the gradient of a part: a view into the gradient of its bucket, or a copy of
    parameters that are not adjacent.
    """
    if part.adjacent:
        return flat[part.start : part.stop].view(part.shape)
    return torch.cat([flat[slot.start : slot.stop] for slot in part.slots]).view(part.shape)


def replace_gradient(part: Part, flat: Float[Tensor, " n"], gradient: Float[Tensor, "..."]) -> None:
    """Writes a changed result of `gradient_of` to the gradient of the bucket, if it is a copy."""
    if part.adjacent:
        return
    values = torch.split(gradient.view(-1), [slot.shape.numel() for slot in part.slots])
    for slot, value in zip(part.slots, values, strict=True):
        flat[slot.start : slot.stop] = value


@contextmanager
def named(part: Part) -> Iterator[None]:
    """Adds the names of the parameters of a part to a CodecError."""
    try:
        yield
    except CodecError as error:
        names = ", ".join(slot.name for slot in part.slots)
        raise CodecError(f"the gradient of {names}: {error}") from error


def layout(part: Part) -> Layout:
    """Returns the parameters in the gradient of a part, and their shapes."""
    return {slot.name: slot.shape for slot in part.slots}
