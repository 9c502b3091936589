"""Rule for parameters that travel dense under any codec: small vectors, where a codec saves nothing
and costs accuracy.

A bias, or the scale or shift of a norm, changes a whole channel, so that an error in one entry is
an error in the whole channel. These parameters are few: 0.04 % of ResNet18's entries. They are
vectors, and the longest in the networks here has 4096 entries. A parameter with two or more
dimensions is a layer; the smallest have some hundred entries. A longer vector is a flattened
gradient, and must be compressed.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from atomo.codecs.base import Codec
from atomo.codecs.dense.dense import DENSE

__all__ = ["DENSE", "DENSE_BELOW", "codec_for", "goes_dense"]

DENSE_BELOW: Final = 8192  # entries: 32 kB


def goes_dense(shape: torch.Size, dense_below: int = DENSE_BELOW) -> bool:
    """Returns True if a parameter travels dense: a vector or scalar below `dense_below` entries."""
    return len(shape) < 2 and shape.numel() < dense_below


def codec_for(codec: Codec[Any], shape: torch.Size, dense_below: int = DENSE_BELOW) -> Codec[Any]:
    """Returns the dense codec for a parameter that travels dense, else `codec`."""
    return DENSE if goes_dense(shape, dense_below) else codec
