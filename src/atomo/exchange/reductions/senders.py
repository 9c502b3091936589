"""All-gather with the mean over the senders of each entry, not over all ranks.

Public code of SparseLoCo averages so, and its paper does not: Sarfi et al., "Communication
Efficient LLM Pre-training with SparseLoCo", 2025. An entry that few ranks send is then not smaller
than an entry that all ranks send.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor, add_frame, finish
from atomo.exchange.engine.announcements import add_subset, check_encoded, read_announcements
from atomo.exchange.reductions.allgather import AnnouncedAllgather, check_frame
from atomo.fusion import Bucket
from atomo.fusion.buckets import subset
from atomo.wire import Bytes

__all__ = ["MeanOverSenders"]


@final
class MeanOverSenders(Reduction[Bytes, Sequence[Bytes]]):
    """The frames of an all-gather. A rank sends an entry if it decodes to a value other than 0."""

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._gather = AnnouncedAllgather(collective, compressor)

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return codec

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Bytes:
        return self._gather.encode(bucket, flat, step, usage)

    def exchange(self, bucket: Bucket, encoded: Bytes, step: int) -> Sequence[Bytes]:
        return self._gather.exchange(bucket, encoded, step)

    def decode(
        self, bucket: Bucket, received: Sequence[Bytes], step: int, out: Float[Tensor, " n"]
    ) -> None:
        out.zero_()
        senders = torch.zeros_like(out)
        announcements = read_announcements(received, bucket)
        check_encoded(announcements, bucket)
        for rank, announcement in enumerate(announcements):
            if any(announcement.marked):
                part = subset(bucket, announcement.marked)
                decoded = torch.zeros(part.size, device=out.device)
                frame = check_frame(announcement.body, part, step, rank, rank)
                add_frame(part, frame, decoded, 1.0)
                add_subset(bucket, part, decoded, out)
                add_subset(bucket, part, decoded.ne(0).float(), senders)
        out.div_(senders.clamp_min_(1))
        finish(bucket, out)

    def sent_bytes(self, encoded: Bytes, received: Sequence[Bytes]) -> int:
        return self._gather.sent_bytes(encoded, received)
