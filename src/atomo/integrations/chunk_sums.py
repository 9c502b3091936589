"""The mean of the chunks on which all ranks agree, with the norms that they agree by."""

from dataclasses import replace

from atomo.communicators.chunked import Chunked
from atomo.communicators.collective import Collective
from atomo.integrations.encoder import Encoder, cut, part_of, put
from atomo.integrations.message import Kind, read
from atomo.integrations.sent import Sent

__all__ = ["sum_chunks"]


def sum_chunks(sent: Sent, encoder: Encoder, collective: Collective, step: int) -> tuple[Sent, int]:
    """What all ranks say of a bucket, or nothing any more where its scratch space has the mean;
    and the bytes that this rank gave.

    First they say whether they can encode it, and which parameters they used: a few bytes. What any
    of them used is what all of them send chunks of, with what they kept of it.
    """
    (mine,) = sent.said
    said = [*collective.gather(mine, f"bucket {sent.bucket.number} of step {step}")]
    messages = [read(one, len(sent.bucket.slots)) for one in said]
    if any(one.kind is not Kind.CODED for one in messages):
        return replace(sent, said=said), 0  # whoever decodes it says what is wrong
    used = [any(marks) for marks in zip(*(one.marked for one in messages), strict=True)]
    summed = sum_used(sent, used, encoder, collective, step)
    return replace(sent, said=()), summed


def sum_used(
    sent: Sent, used: list[bool], encoder: Encoder, collective: Collective, step: int
) -> int:
    """Replaces the scratch space of a bucket by the mean of those parameters; the bytes given."""
    if not any(used):
        sent.flat.zero_()
        return 0
    part = part_of(sent.bucket, used, encoder.codecs)
    mean = sent.flat.new_zeros(part.size)
    ranks = Chunked(collective, encoder.compressor)
    summed = ranks.average(part, cut(sent.bucket, part, sent.flat), step, mean)
    sent.flat.zero_()
    put(sent.bucket, part, mean, sent.flat)
    return summed
