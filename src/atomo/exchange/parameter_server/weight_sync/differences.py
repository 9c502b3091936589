"""Coded differences of weights: a frame changes equal weights to equal weights."""

from dataclasses import dataclass
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from atomo.codecs import Field, Law
from atomo.core.randomness import derive
from atomo.errors import CodecError, FrameError
from atomo.fusion import Bucket, Part
from atomo.wire import Bytes, Compression, Header, Kind, pack, unpack

__all__ = ["DifferenceCoder", "add_difference"]

BASE: Final = Field(torch.int64, (1,))


@final
@dataclass(frozen=True)
class DifferenceCoder:
    """Encoder of differences of weights."""

    compression: Compression
    seed: int

    def frame(
        self,
        bucket: Bucket,
        target: Float[Tensor, " n"],
        current: Float[Tensor, " n"],
        version: int,
    ) -> Bytes:
        """Returns the frame that moves a bucket from `current`, of the previous version, towards
        `target`.
        """
        sections = [torch.tensor([version - 1])]
        for part in bucket.parts:
            goal = target[part.start : part.stop].view(part.shape)
            base = current[part.start : part.stop].view(part.shape)
            # w + (x - w) is not exactly x, as the difference is rounded. A lossless codec encodes
            # x itself, in as many bytes.
            value = goal if is_exact(part) else goal - base
            sections += part.codec.sections(
                part.codec.encode(value, self._generator(part, version))
            )
        header = Header(Kind.DELTA, version, 0, bucket.number, bucket.layout_hash)
        return pack(header, sections, self.compression)

    def _generator(self, part: Part, version: int) -> Generator:
        seed = derive(self.seed, "delta", version, part.slots[0].name)
        return Generator().manual_seed(seed)


def add_difference(bucket: Bucket, frame: Bytes, out: Float[Tensor, " n"], base: int) -> None:
    """Applies a frame to a bucket of weights of version `base`, in place.

    Raises:
        FrameError: the frame is of another bucket, or starts at another version.
    """
    sections = iter(unpack(frame, [BASE, *bucket.fields]))
    if (base_version := next(sections).tolist()) != [base]:
        raise FrameError(
            f"a difference from version {base_version} arrived; the weights are of version {base}"
        )
    for part in bucket.parts:
        payload = part.codec.assemble(sections)
        apply = replace if is_exact(part) else add
        try:
            apply(part, payload, out[part.start : part.stop].view(part.shape))
        except CodecError as error:
            raise FrameError(f"bucket {bucket.number}: {error}") from error


def is_exact(part: Part) -> bool:
    """True if the codec is lossless, so that the weights themselves are sent."""
    return Law.LOSSLESS in part.codec.laws


def add(part: Part, payload: Any, out: Float[Tensor, "..."]) -> None:
    part.codec.add_decoded(payload, out, 1.0)


def replace(part: Part, payload: Any, out: Float[Tensor, "..."]) -> None:
    out.copy_(part.codec.decode(payload, part.shape))
