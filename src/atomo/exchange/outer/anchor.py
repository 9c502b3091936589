"""The anchor of local steps: the weights from which all replicas begin a round."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.exchange.outer.rotation import rotate, unrotate
from atomo.options.outer import Outer
from atomo.options.rounds import DCT, UNSENT

__all__ = ["Anchor"]


@final
class Anchor:
    """The weights of the last exchange in float32, the outer momentum, and the buffers.

    A model in half precision has the rounded anchor. A difference is taken from the rounded anchor,
    so that a replica that does not move sends zeros, and the anchor keeps the digits that the model
    cannot hold.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        outer: Outer,
        *,
        late: bool = False,
        transform: str = "none",
    ) -> None:
        """Makes an anchor at the present weights.

        Args:
            parameters: the parameters that are exchanged, by name.
            buffers: the floating-point buffers of the model, by name.
            outer: the optimizer that steps the anchor.
            late: True if the mean of a round is applied one round late.
            transform: "dct" if coefficients are exchanged in place of differences.
        """
        self.outer = self._outer = outer
        self._rotates = transform == DCT
        self._parameters, self._buffers = parameters, buffers
        self._weights = {
            name: copy_of(tensor, torch.float32) for name, tensor in parameters.items()
        }
        self._averaged = {name: copy_of(tensor) for name, tensor in buffers.items()}
        # With `late`, a replica begins a round at its own weights, not at the anchor.
        self._starts = copies(parameters) if late else {}
        self._momentum: dict[str, Tensor] = {}
        if outer.momentum:
            self._momentum = {n: torch.zeros_like(tensor) for n, tensor in self._weights.items()}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights, by parameter name. Do not change them."""
        return self._weights

    @torch.no_grad()
    def difference(self, name: str) -> Tensor:
        """Returns the weights at the beginning of the round - weights of a parameter, in float32.

        These are the anchor as the model has it, or, if means are applied one round late, the
        weights of this replica.
        """
        parameter = self._parameters[name].detach()
        start = self._starts[name] if self._starts else self._weights[name].to(parameter.dtype)
        return torch.sub(start.float(), parameter.float())

    def coefficients(self, difference: Tensor) -> Tensor:
        """Returns a difference as it is exchanged."""
        return rotate(difference) if self._rotates else difference

    def entries(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the mean differences of what was exchanged, by parameter name."""
        return {name: unrotate(mean) if self._rotates else mean for name, mean in means.items()}

    def set_learning_rate(self, rate: float) -> None:
        """Sets the learning rate of the inner optimizer, which the steps of `sign` follow."""
        self._outer = self.outer.at_rate(rate)

    @property
    def effective_rate(self) -> Callable[[float], float]:
        """The effective rate of the outer optimizer at a correlation."""
        return self._outer.effective_rate

    @torch.no_grad()
    def step(self, means: Mapping[str, Tensor], mix: float | str, *, exact: bool = False) -> None:
        """Takes an outer step, from which the replica continues.

        Args:
            means: the mean differences, by parameter name.
            mix: the weight of the replica's own weights in those that it continues from; "unsent":
                its own weights where the mean is zero.
            exact: True if the weights of this replica, before they are replaced, are the mean. A
                difference in float32 does not always lead back to the weights.
        """
        for name, mean in means.items():
            parameter, anchor = self._parameters[name].detach(), self._weights[name]
            if exact:
                anchor.copy_(parameter)
            else:
                self._outer.step(anchor, self._momentum.get(name), mean)
            parameter.copy_(mixed(anchor, parameter, mean, mix))

    @torch.no_grad()
    def step_late(
        self, means: Mapping[str, Tensor], changes: Mapping[str, Tensor], *, exact: bool = False
    ) -> None:
        """Takes the outer step of the round before the last, and keeps the last round.

        The replica continues from the new anchor plus the change of its own last round, whose mean
        is not known yet. So no step is lost, and each difference reaches the anchor once.

        Args:
            means: the mean differences of the round before the last; none in the first round.
            changes: the differences of this replica in the last round, by parameter name.
            exact: as in `step`.
        """
        for name, start in self._starts.items():
            parameter, anchor = self._parameters[name].detach(), self._weights[name]
            if exact and name in means:
                anchor.copy_(start)
            elif name in means:
                self._outer.step(anchor, self._momentum.get(name), means[name])
                parameter.copy_(anchor - changes[name])
            start.copy_(parameter)

    def keep_buffers(self) -> None:
        """Copies the buffers of the model, after they were averaged."""
        self.take_buffers(self._buffers)

    @torch.no_grad()
    def take_buffers(self, means: Mapping[str, Tensor]) -> None:
        """Copies averaged buffers, by name; those of the model stay as they are."""
        for name, buffer in self._averaged.items():
            buffer.copy_(means[name])

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the anchor and the averaged buffers into the model."""
        for name, tensor in (self._weights | self._averaged).items():
            self._target(name).copy_(tensor)

    @torch.no_grad()
    def begin(self) -> None:
        """Begins a round at the present weights, if means are applied one round late."""
        for name, start in self._starts.items():
            start.copy_(self._parameters[name])

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """The weights at which this replica began the round, if means are applied one round late;
        else empty. Do not change them, except to restore them.
        """
        return self._starts

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Puts the anchor into the model for a block; afterwards the weights are as before."""
        names = [*self._parameters, *self._buffers]
        own = {name: copy_of(self._target(name)) for name in names}
        self.restore()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in own.items():
                    self._target(name).copy_(tensor)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Returns copies of the weights, the momentum and the buffers, by name."""
        return {part: copies(tensors) for part, tensors in self._parts.items()}

    @property
    def _parts(self) -> dict[str, dict[str, Tensor]]:
        parts = {"weights": self._weights, "momentum": self._momentum, "buffers": self._averaged}
        return parts | {"starts": self._starts} if self._starts else parts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the anchor by a state of `state_dict`.

        Raises:
            CheckpointError: the state belongs to another model, or lacks the momentum.
        """
        parts = self._parts
        for part, tensors in parts.items():
            check_part(part, state.get(part, {}), tensors)
        for part, tensors in parts.items():
            for name, tensor in tensors.items():
                tensor.copy_(state[part][name])

    def _target(self, name: str) -> Tensor:
        """Returns the tensor of the model with this name."""
        source = self._parameters if name in self._parameters else self._buffers
        return source[name].detach()


def mixed(anchor: Tensor, parameter: Tensor, mean: Tensor, mix: float | str) -> Tensor:
    """Returns the weights that a replica continues from."""
    if mix == UNSENT:
        return torch.where(mean.eq(0), parameter.float(), anchor)
    return torch.lerp(anchor, parameter.float(), float(mix)) if mix else anchor


def copy_of(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Returns a copy of a tensor, in another dtype if one is given."""
    return tensor.detach().to(dtype or tensor.dtype, copy=True)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns copies of tensors, by name."""
    return {name: copy_of(tensor) for name, tensor in tensors.items()}


def check_part(part: str, saved: Mapping[str, Any], expected: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError if a part of a state does not fit."""
    for name in sorted(saved.keys() ^ expected.keys()):
        if part == "momentum" and not expected:
            break  # this outer optimizer has no momentum
        fault = "has no" if name in expected else "is of another model: it has"
        raise CheckpointError(f"the {part} of the anchor in the state {fault} {name!r}")
    for name, tensor in expected.items():
        if saved[name].shape != tensor.shape:
            raise CheckpointError(
                f"the {part} of the anchor in the state has {name!r} as "
                f"{tuple(saved[name].shape)}; this model has {tuple(tensor.shape)}"
            )
