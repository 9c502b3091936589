"""The flat gradients of a model's buckets, and the call when a bucket is complete."""

from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from atomo.codecs.rows import RowGradient
from atomo.core.devices import to_host
from atomo.fusion.buckets import Bucket, Slot
from atomo.fusion.embeddings import rows_of

__all__ = ["Gradients"]

Ready = Callable[[Bucket, Float[Tensor, " n"]], None]


@final
class Gradients:
    """Flat buffers, one for each bucket, that autograd writes into.

    `ready` is called during the backward pass, with each bucket once its last gradient is complete,
    so that encoding and sending overlap the rest of the pass. It may change the flat gradient in
    place.
    """

    def __init__(
        self,
        model: nn.Module,
        buckets: Sequence[Bucket],
        ready: Ready,
        rows: dict[str, RowGradient] | None = None,
        apart: frozenset[str] = frozenset(),
    ) -> None:
        """Allocates the buffers, and registers hooks at the parameters.

        Args:
            model: the model whose parameters receive the gradients.
            buckets: the layout of the flat buffers.
            ready: called with each complete bucket and its flat gradient.
            rows: receives the gradients of `apart`.
            apart: parameters with row gradients. These are not written into the flat buffers, whose
                pages at their places are never touched, and therefore take no memory.
        """
        self._parameters = dict(model.named_parameters())
        device = next(iter(self._parameters.values())).device
        self._buckets, self._ready = buckets, ready
        self._flat = [torch.empty(bucket.size, device=device) for bucket in buckets]
        self._waiting = [0] * len(buckets)
        self._rows = {} if rows is None else rows
        self._apart = apart
        self._dense: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []
        for bucket, flat in zip(buckets, self._flat, strict=True):
            self._dense += [flat[start:stop].zero_() for start, stop in self._spans(bucket)]
            for slot in bucket.slots:
                parameter = self._parameters[slot.name]
                if slot.name not in apart:
                    parameter.grad = place(slot, flat)
                arrived = self._hook(bucket)
                hook = parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
                self._hooks.append(hook)

    def begin(self, passes: int = 1) -> None:
        """Clears the gradients. A bucket is complete after `passes` backward passes."""
        for part in self._dense:
            part.zero_()
        for name in self._apart:
            self._parameters[name].grad = None
        self._rows.clear()
        for bucket in self._buckets:
            self._waiting[bucket.number] = passes * len(bucket.slots)

    def finish(self) -> None:
        """Hands over the buckets of parameters that the loss did not depend on."""
        for bucket in self._buckets:
            if self._waiting[bucket.number]:
                self._waiting[bucket.number] = 0
                self._hand_over(bucket)

    def close(self) -> None:
        """Removes the hooks from the model. Otherwise neither this object nor the model is freed: a
        parameter's hooks refer to this object, this object refers to the parameter, and Python's
        garbage collector does not see the first reference.
        """
        for hook in self._hooks:
            hook.remove()

    def are_finite(self) -> bool:
        """Returns True if the gradients hold neither NaN nor infinity."""
        parts = [*self._dense, *(row_gradient.values for row_gradient in self._rows.values())]
        # One look for all of them: each at a device would wait for it.
        return all(
            bool(is_finite) for is_finite in to_host([part.isfinite().all() for part in parts])
        )

    def _spans(self, bucket: Bucket) -> list[tuple[int, int]]:
        """Returns the used ranges of the flat gradient, merged where they touch."""
        spans: list[tuple[int, int]] = []
        for slot in bucket.slots:
            if slot.name in self._apart:
                continue
            start = spans.pop()[0] if spans and spans[-1][1] == slot.start else slot.start
            spans.append((start, slot.stop))
        return spans

    def _hand_over(self, bucket: Bucket) -> None:
        flat = self._flat[bucket.number]
        for slot in bucket.slots:
            if slot.name in self._apart:
                self._rows[slot.name] = rows_of(self._parameters[slot.name])
        self._ready(bucket, flat)

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            self._waiting[bucket.number] -= 1
            if not self._waiting[bucket.number]:
                self._hand_over(bucket)

        return arrived


def place(slot: Slot, flat: Float[Tensor, " n"]) -> Float[Tensor, "..."]:
    """Returns the range of a parameter's gradient in the gradient of its bucket."""
    return flat[slot.start : slot.stop].view(slot.shape)
