"""The scales that ranks agree on before they encode, where a codec wants one for all."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.exchange import Compressor
from atomo.errors import CodecError, FrameError
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["agree"]


def agree(
    bucket: Bucket,
    flat: Float[Tensor, " n"],
    compressor: Compressor,
    gather: Callable[[Bytes], list[Bytes]],
) -> None:
    """Has a compressor encode with the largest scale that any rank asks for, part by part.

    Raises:
        FrameError: a rank asked for something else than scales.
    """
    names = [part.slots[0].name for part in bucket.agreeing]
    try:
        asked = compressor.propose(bucket, flat)
    except CodecError:  # not finite: the message says so
        asked = dict.fromkeys(names, 0.0)
    mine = np.array([asked[name] for name in names], np.float64)
    answers = [one.view(np.float64) for one in gather(mine.view(np.uint8))]
    if any(one.shape != mine.shape or not np.isfinite(one).all() for one in answers):
        raise FrameError(f"{len(names)} finite scales were expected of each rank")
    scales = np.stack(answers).max(0).tolist()
    compressor.agree(dict(zip(names, scales, strict=True)))
