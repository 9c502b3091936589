"""The flat gradients of a model's buckets, and who is told when one of them is complete."""

from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atomo.fusion.buckets import Bucket

__all__ = ["Gradients"]

Ready = Callable[[Bucket, Float[Tensor, " n"]], None]


@final
class Gradients:
    """Lets autograd write straight into flat buffers, one a bucket.

    `ready` is called during the backward pass, with each bucket as soon as its last gradient is
    there, so that encoding and sending overlap what is still computed. It may change the flat
    gradient in place.
    """

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket], ready: Ready) -> None:
        parameters = dict(model.named_parameters())
        device = next(iter(parameters.values())).device
        self._buckets = buckets
        self._flat = [torch.zeros(bucket.size, device=device) for bucket in buckets]
        self._waiting = [0] * len(buckets)
        self._ready = ready
        for bucket, flat in zip(buckets, self._flat, strict=True):
            for slot in bucket.slots:
                parameter = parameters[slot.name]
                parameter.grad = flat[slot.start : slot.stop].view(slot.shape)
                hook = self._hook(bucket)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def begin(self, passes: int = 1) -> None:
        """Clears the gradients, which so many backward passes add up; a bucket is complete when the
        last of them has been there.
        """
        for bucket, flat in zip(self._buckets, self._flat, strict=True):
            flat.zero_()
            self._waiting[bucket.number] = passes * len(bucket.slots)

    def finish(self) -> None:
        """Hands over the buckets of parameters that the loss did not depend on."""
        for bucket in self._buckets:
            if self._waiting[bucket.number]:
                self._waiting[bucket.number] = 0
                self._ready(bucket, self._flat[bucket.number])

    def are_finite(self) -> bool:
        """Whether neither NaN nor infinity is in what lies there."""
        return all(bool(flat.isfinite().all()) for flat in self._flat)

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            self._waiting[bucket.number] -= 1
            if not self._waiting[bucket.number]:
                self._ready(bucket, self._flat[bucket.number])

        return arrived
