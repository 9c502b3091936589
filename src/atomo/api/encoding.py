"""`atomo.encode`: tensors to self-describing bytes."""

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
    """Compresses a tensor, or a list of tensors, into self-describing bytes.

    >>> data = encode([torch.ones(100, 30), torch.zeros(4)], "signsgd", seed=0)
    >>> len(data) < 4 * 3004 / 20
    True

    `Encoder` does the same at every step of a loop, in less time.

    Args:
        tensors: of floating point. Other dtypes than float32 are converted to float32 here, and
            back by `decode`. Each tensor is encoded on its own.
        code: a codec, such as `atomo.codecs.SVD(rank=3)`, or its specification, "svd(rank=3)".
        seed: of the generator that unbiased codecs round or sample with. Same seed, same bytes.
        compression: blosc's settings for the sections.
        memory: of this worker. The memory adds to each tensor the residual of earlier calls, by the
            tensor's position, and stores the new residual: the part that is not sent.
        dense_below: vectors and scalars with fewer entries are sent dense with any codec. The
            default is 0 for a single tensor, and 8192 for a list, as in a training run: the biases
            and the norms' parameters of a model are dense.

    Raises:
        ConfigError: `code` is no codec, `memory` is no memory or does not suit the codec, or
            another setting is out of range.
        CodecError: a tensor is not dense, not of floating point, empty, or of more than 16
            dimensions, or has values that the codec cannot encode; or the seed is invalid.
    """
    codec, generator, batch = as_codec(code), seeded(seed), as_tensors(tensors)
    blosc, residuals = as_compression(compression), as_memory(memory)
    about = description_of(codec, batch, isinstance(tensors, Tensor), dense_below)
    gradients = [as_float32(tensor) for tensor in batch]
    if residuals is not None:
        check_fits(codec, residuals)
        announce_norm(residuals, batch)
    sections: list[Tensor] = []
    for place, gradient in enumerate(gradients):
        coder, layout = about.coder(gradient.shape), {str(place): gradient.shape}
        sections += coder.sections(encoded(coder, gradient, layout, residuals, generator))
    return pack_bytes(Header(Kind.TENSORS), sections, blosc, write_description(about))


def description_of(
    codec: Codec[Any], batch: Sequence[Tensor], single: bool, dense_below: int | None
) -> Description:
    """Builds the description of a frame with these tensors."""
    default = 0 if single else DENSE_BELOW
    below = default if dense_below is None else max(0, whole("dense_below", dense_below))
    return Description(
        codec, single, tuple((tensor.dtype, tensor.shape) for tensor in batch), below
    )


def announce_norm(memory: Memory, tensors: Iterable[Tensor]) -> None:
    """Gives the norm of the whole gradient to a memory that clips."""
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
    # Memories change their input in place, and `gradient` may be the caller's own tensor.
    own = gradient.clone(memory_format=torch.contiguous_format)
    return memory.encode(codec, own, layout, generator)
