"""Rule for parameters that travel dense under any codec: small vectors, where a codec saves nothing
and costs accuracy.

Biases and the scales and shifts of norms steer every entry of what they are added to or multiplied
with, so that an error in one of them is an error in a whole channel, and a layer has so few of them
that they hardly count: 0.04 % of ResNet18's entries. They are vectors, and the longest of the
networks here have 4096 entries; whatever has two dimensions or more is a layer, of which the
smallest have some hundred entries. A vector that is longer is no bias but a gradient that somebody
flattened, and sending that dense would undo what a codec is for.
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
