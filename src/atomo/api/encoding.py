"""`atomo.encode`: tensors to bytes that say how to decode them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Size, Tensor

from atomo.api.description import Description, write_description
from atomo.api.validate import (
    as_codec,
    as_compression,
    as_float32,
    as_memory,
    as_tensors,
    seeded,
    whole,
)
from atomo.codecs import Codec
from atomo.codecs.dense_fallback import DENSE_BELOW
from atomo.memory import Memory, check_fits
from atomo.wire import Compression, Header, Kind, pack_bytes

__all__ = ["announce_norm", "description_of", "encode", "encoded"]


def encode(
    tensors: Tensor | Iterable[Tensor],
    code: str | Codec[Any],
    *,
    seed: int,
    compression: Compression | None = None,
    memory: Memory | None = None,
    dense_below: int | None = None,
) -> bytes:
    """Compresses one tensor, or a list of them, into bytes that say how to decode them.

    >>> data = encode([torch.ones(100, 30), torch.zeros(4)], "signsgd", seed=0)
    >>> len(data) < 4 * 3004 / 20
    True

    `Encoder` does the same at every step of a loop, for less.

    Args:
        tensors: floating point; another dtype than float32 is converted to it on the way, and back
            by `decode`. Each is encoded on its own.
        code: a codec, such as `atomo.codecs.SVD(rank=3)`, or its specification, "svd(rank=3)".
        seed: of the generator that unbiased codecs round or sample with. Same seed, same bytes.
        compression: blosc's settings for the sections.
        memory: adds to each tensor what it kept of the one in the same place at earlier calls, and
            keeps what is not sent of it now. One memory for each worker.
        dense_below: vectors and scalars with fewer entries travel as they are, whatever the codec.
            By default nothing does where one tensor is given, and of a list, as the parameters of a
            model are, what a training run sends dense: biases and norms, below 8192 entries.

    Raises:
        ConfigError: `code` is no codec, `memory` no memory or one that does not suit it, or another
            setting is out of range.
        CodecError: what was given is no dense tensor of floating point with at least one entry and
            at most 16 dimensions, or holds what the codec cannot carry; the seed is none.
    """
    codec, generator, batch = as_codec(code), seeded(seed), as_tensors(tensors)
    how, kept = as_compression(compression), as_memory(memory)
    about = description_of(codec, batch, isinstance(tensors, Tensor), dense_below)
    gradients = [as_float32(tensor) for tensor in batch]
    if kept is not None:
        check_fits(codec, kept)
        announce_norm(kept, batch)
    sections: list[Tensor] = []
    for place, gradient in enumerate(gradients):
        coder, layout = about.coder(gradient.shape), {str(place): gradient.shape}
        sections += coder.sections(encoded(coder, gradient, layout, kept, generator))
    return pack_bytes(Header(Kind.TENSORS), sections, how, write_description(about))


def description_of(
    codec: Codec[Any], batch: Sequence[Tensor], single: bool, dense_below: int | None
) -> Description:
    """Builds the description of the frame of tensors."""
    most = 0 if single else DENSE_BELOW
    below = most if dense_below is None else max(0, whole("dense_below", dense_below))
    return Description(codec, single, tuple((one.dtype, one.shape) for one in batch), below)


def announce_norm(memory: Memory, tensors: Iterable[Tensor]) -> None:
    """Tells a memory that clips the norm of the whole gradient."""
    if memory.needs_norm:
        norms = (float(tensor.detach().float().norm()) for tensor in tensors)
        memory.begin(math.hypot(*norms))


def encoded(
    codec: Codec[Any],
    gradient: Tensor,
    layout: Mapping[str, Size],
    memory: Memory | None,
    generator: Generator,
) -> Any:
    """Encodes one tensor, with the residual of its name."""
    if memory is None:
        return codec.encode(gradient, generator)
    # What memories are given is theirs to change, and here it may still be the caller's.
    own = gradient.clone(memory_format=torch.contiguous_format)
    return memory.encode(codec, own, layout, generator)
