"""The mean of what adds up, gradients or payloads, summed on its way."""

from dataclasses import replace

from torch import Tensor

from atomo.codecs.dense_fallback import DENSE
from atomo.communicators.allreduce import add_mean, addends_of
from atomo.communicators.collective import Addend, Collective
from atomo.communicators.exchange import finish
from atomo.integrations.encoder import Coded, Encoder, put
from atomo.integrations.message import Kind, read
from atomo.integrations.sent import Sent

__all__ = ["sum_gradients", "sum_payloads"]


def sum_gradients(sent: Sent, collective: Collective, what: str) -> int:
    """Replaces gradients by their mean as they are, in float32; the bytes that this rank gave."""
    flat, chunk = sent.flat, sent.chunk
    flat.mul_(1 / collective.size)  # as DDP does: a division has other bits
    collective.sum([Addend(flat, DENSE)], what)
    if flat is not chunk.whole:
        chunk.replace(flat)
    return flat.nbytes


def sum_payloads(sent: Sent, encoder: Encoder, collective: Collective, step: int) -> Sent:
    """What all ranks say of a bucket, or nothing any more where its scratch space has the mean.

    First they say whether they could encode it, and which parameters they used: a few bytes. A rank
    that used others has another payload, which does not add up: then all of them gather frames.
    """
    what = f"bucket {sent.bucket.number} of step {step}"
    (mine,) = sent.said
    said = [*collective.gather(mine, what)]
    messages = [read(one, len(sent.bucket.slots)) for one in said]
    if any(one.kind is not Kind.CODED for one in messages):
        return replace(sent, said=said)  # whoever decodes it says what is wrong
    if any(one.marked != messages[0].marked for one in messages):
        frame = encoder.framed(mine, sent.coded, step)
        return replace(sent, said=[*collective.gather(frame, f"the frame of {what}")])
    if sent.coded is None:
        sent.flat.zero_()
    else:
        sum_coded(sent, sent.coded, collective, f"the sum of {what}")
    return replace(sent, said=())


def sum_coded(sent: Sent, coded: Coded, collective: Collective, what: str) -> None:
    """Replaces the scratch space of a bucket by the mean of what all ranks have encoded."""
    part, payloads, ranks = coded.part, coded.payloads, collective.size
    addends = [apart(one, sent.flat) for one in addends_of(part, payloads, ranks)]
    collective.sum(addends, what)
    sent.flat.zero_()
    whole = part is sent.bucket
    mean = sent.flat if whole else sent.flat.new_zeros(part.size)
    add_mean(part, payloads, addends, mean, ranks)
    if not whole:
        put(sent.bucket, part, mean, sent.flat)
    finish(sent.bucket, sent.flat)


def apart(addend: Addend, flat: Tensor) -> Addend:
    """An addend that shares no memory with what becomes the mean."""
    same = addend.values.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    return replace(addend, values=addend.values.clone()) if same else addend
