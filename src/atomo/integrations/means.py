"""The mean of a chunk, from what came or by sums; NaN where a step is to be skipped."""

import math

from atomo.communicators.acpsgd import ACPSGD
from atomo.communicators.low_rank import Held
from atomo.communicators.powersgd import PowerSGD
from atomo.errors import CodecError
from atomo.integrations.chunk import Codecs
from atomo.integrations.encoder import NotFinite, mean_of
from atomo.integrations.sent import Sent

__all__ = ["decode_frames", "sum_factors"]


def decode_frames(sent: Sent, codecs: Codecs, step: int, *, skips: bool) -> None:
    """Decodes what all ranks said.

    Raises:
        NotFinite: a rank's gradient holds NaN or infinity, and steps are not skipped.
    """
    try:
        mean_of(sent.said, sent.bucket, codecs, step, sent.flat)
    except NotFinite:
        if not skips:
            raise
        sent.flat.fill_(math.nan)


def sum_factors(
    method: PowerSGD | ACPSGD, sent: Sent, held: Held, step: int, *, skips: bool
) -> None:
    """Sums what all ranks hold.

    Raises:
        NotFinite: as above; all ranks find that out, and at the same sum.
    """
    try:
        method.start(sent.bucket, held, step)(sent.flat)
    except CodecError as error:
        if not skips:
            raise NotFinite(str(error)) from error
        sent.flat.fill_(math.nan)
