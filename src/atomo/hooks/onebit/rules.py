"""Update rules that average momentum with one bit an entry, once the variance is frozen.

m is the momentum and v the variance of Adam, both without bias correction, as their authors have
them. Where v is 0 when it is frozen, an entry had no gradient until then, and gets no update: its
step m / eps would be huge.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.hooks.onebit.sign_mean import SignMean, copy_parts

__all__ = ["LambRule", "MomentumRule", "OneBitAdamRule", "ParameterStep", "ZeroOneAdamRule"]

NO_NUMBERS: Final[Mapping[str, float]] = MappingProxyType({})
LAMB_NUMBERS: Final[Mapping[str, float]] = MappingProxyType(
    {"lamb_coeff": 0.0, "last_factor": 1.0, "scaling_coeff": 1.0}
)


@final
@dataclass(frozen=True)
class ParameterStep:
    """One parameter at a step."""

    weights: Tensor
    gradient: Float[Tensor, " n"]
    """The gradient of this rank; scratch space."""
    state: dict[str, Tensor]
    """Flat vectors and numbers, by kind; vectors are zeros before the first step."""
    group: dict[str, Any]
    """The parameter group: lr, betas, eps, weight_decay."""

    def subtract(self, update: Float[Tensor, " n"], rate: float) -> None:
        """Subtracts an update times a rate from the weights."""
        self.weights.sub_(update.view(self.weights.shape), alpha=rate)

    def track_mean(self, gradient: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Adds a gradient to the momentum, and returns the momentum."""
        beta, momentum = self.group["betas"][0], self.state["exp_avg"]
        return momentum.mul_(beta).add_(gradient, alpha=1 - beta)

    def track_square(self, gradient: Float[Tensor, " n"], kind: str = "exp_avg_sq") -> None:
        """Adds the square of a gradient to a variance."""
        beta = self.group["betas"][1]
        self.state[kind].mul_(beta).addcmul_(gradient, gradient, value=1 - beta)

    def mask(self) -> None:
        """Removes the noise of signs from the momentum of entries that had no gradient."""
        self.state["exp_avg"].mul_(self.state["exp_avg_sq"] > 0)

    def denominator(self, kind: str = "exp_avg_sq") -> Float[Tensor, " n"]:
        """Returns sqrt(v) + eps."""
        return self.state[kind].sqrt().add_(self.group["eps"])

    def decayed(self, update: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Returns an update plus the weight decay."""
        decay = self.group["weight_decay"]
        return update.add(self.weights.reshape(-1), alpha=decay) if decay else update


def adam_update(slot: ParameterStep, *, frozen: bool = False) -> Float[Tensor, " n"]:
    """Returns m / (sqrt(v) + eps); with a frozen variance, 0 where that is 0."""
    update = slot.state["exp_avg"] / slot.denominator()
    return update.mul_(slot.state["exp_avg_sq"] > 0) if frozen else update


@runtime_checkable
class MomentumRule(Protocol):
    """A rule for all parameters together. It has no state of its own but `counters`."""

    kinds: tuple[str, ...]
    """The vectors of each parameter."""
    numbers: Mapping[str, float]
    """The numbers of each parameter, with their first values."""
    counters: dict[str, float]
    """Numbers for all parameters together, which a checkpoint saves."""
    fused: bool
    """True if all parameters are one vector of the mean, with one scale."""

    def step(self, slots: Sequence[ParameterStep], mean: SignMean, step: int) -> None:
        """Takes step number `step`, from 1, on all ranks together."""


@final
@dataclass(eq=False)
class OneBitAdamRule:
    """1-bit Adam (Tang et al., ICML 2021)."""

    freeze_step: int
    """The last step with dense gradients, which still changes the variance."""
    kinds: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    numbers: Mapping[str, float] = field(default_factory=lambda: NO_NUMBERS)
    counters: dict[str, float] = field(default_factory=dict)
    fused: bool = False

    def step(self, slots: Sequence[ParameterStep], mean: SignMean, step: int) -> None:
        """Averages gradients densely until the freeze, and then momenta by their signs."""
        dense = step <= self.freeze_step
        if dense:
            mean.average_dense([slot.gradient for slot in slots], f"gradients of step {step}")
        momenta = [slot.track_mean(slot.gradient) for slot in slots]
        if not dense:
            mean.average(momenta)
        for slot in slots:
            if dense:
                slot.track_square(slot.gradient)
            else:
                slot.mask()
            update = adam_update(slot, frozen=not dense)
            slot.subtract(slot.decayed(update), slot.group["lr"])


@final
@dataclass(eq=False)
class ZeroOneAdamRule:
    """0/1 Adam (Lu et al., ICLR 2023): fewer steps with dense gradients, and local steps."""

    var_freeze_step: int
    """The last step that may change the variance."""
    var_update_scaler: int
    """The number of dense steps after which their distance doubles."""
    local_step_scaler: int
    """The number of steps after the freeze in which the number of local steps doubles."""
    local_step_clipper: int
    """The largest number of local steps of a round."""
    kinds: tuple[str, ...] = ("exp_avg", "exp_avg_sq", "accumulated", "anchor")
    numbers: Mapping[str, float] = field(default_factory=lambda: NO_NUMBERS)
    counters: dict[str, float] = field(
        default_factory=lambda: {
            "var_interval": 1, "var_counter": 0, "local_interval": 1, "local_counter": 0, "rates": 0
        }
    )  # fmt: skip
    fused: bool = False

    def step(self, slots: Sequence[ParameterStep], mean: SignMean, step: int) -> None:
        """Averages gradients until the freeze, and then the updates of rounds of local steps."""
        if step <= self.var_freeze_step:
            self._step_together(slots, mean, step)
            return
        if step == self.var_freeze_step + 1:
            mean.clear()  # from now on errors are of updates, not of gradients
            for slot in slots:
                slot.state["anchor"].copy_(slot.weights.reshape(-1))
        self._step_alone(slots, mean, step)

    def _step_together(self, slots: Sequence[ParameterStep], mean: SignMean, step: int) -> None:
        c, gradients = self.counters, [slot.gradient for slot in slots]
        dense = step % int(c["var_interval"]) == 0
        if dense:
            mean.average_dense(gradients, f"gradients of step {step}")
        else:
            mean.average(gradients, label="gradients")
        for slot in slots:
            slot.track_mean(slot.gradient)
            if dense:
                slot.track_square(slot.gradient)
            slot.subtract(slot.decayed(adam_update(slot)), slot.group["lr"])
        if dense:
            c["var_counter"] += 1
            if c["var_counter"] == self.var_update_scaler:
                c["var_counter"], c["var_interval"] = 0, 2 * c["var_interval"]

    def _step_alone(self, slots: Sequence[ParameterStep], mean: SignMean, step: int) -> None:
        c = self.counters
        c["rates"] += slots[0].group["lr"]
        for slot in slots:
            slot.track_mean(slot.gradient)
            update = slot.decayed(adam_update(slot, frozen=True))
            slot.state["accumulated"].sub_(update, alpha=slot.group["lr"])
            slot.subtract(update, slot.group["lr"])
        if step % int(c["local_interval"]) == 0:
            self._end_round(slots, mean)
        c["local_counter"] += 1
        if c["local_counter"] == self.local_step_scaler:
            longer = min(self.local_step_clipper, 2 * int(c["local_interval"]))
            c["local_counter"], c["local_interval"] = 0, longer

    def _end_round(self, slots: Sequence[ParameterStep], mean: SignMean) -> None:
        """Replaces the updates of a round by their mean, on the weights that the round began with.

        The authors' code takes the updates back from the weights, whose rounding differs between
        ranks; the weights of the last round are the same bits on all ranks.
        """
        accumulated = [slot.state["accumulated"] for slot in slots]
        for slot, total in zip(slots, accumulated, strict=True):
            total.mul_(slot.denominator())
        mean.average(accumulated, label="updates")
        for slot, total in zip(slots, accumulated, strict=True):
            torch.div(total, -self.counters["rates"], out=slot.state["exp_avg"])
            frozen = slot.state["exp_avg_sq"] > 0
            slot.state["anchor"].add_(total.div_(slot.denominator()).mul_(frozen))
            slot.weights.copy_(slot.state["anchor"].view(slot.weights.shape))
            total.zero_()
        self.counters["rates"] = 0


@final
@dataclass(eq=False)
class LambRule:
    """1-bit LAMB (Li et al., HiPC 2022): 1-bit Adam with a factor on the rate of each layer."""

    freeze_step: int
    """The last step with dense gradients."""
    coeffs: tuple[float, float]
    """The least and the largest factor of a layer."""
    coeff_beta: float
    """The decay of the moving average of a layer's factor until the freeze."""
    factors: tuple[float, float]
    """The least and the largest change of the factor after the freeze."""
    factor_threshold: float
    """The largest relative change of it in one step."""
    kinds: tuple[str, ...] = ("exp_avg", "exp_avg_sq", "exp_avg_sq_fresh")
    numbers: Mapping[str, float] = field(default_factory=lambda: LAMB_NUMBERS)
    counters: dict[str, float] = field(default_factory=dict)
    fused: bool = True

    def step(self, slots: Sequence[ParameterStep], mean: SignMean, step: int) -> None:
        """Averages gradients densely until the freeze, and then momenta by their signs."""
        if step <= self.freeze_step:
            mean.average_dense([slot.gradient for slot in slots], f"gradients of step {step}")
            for slot in slots:
                self._step_dense(slot)
            if step == self.freeze_step:
                scale_alike(slots)
            return
        before = [slot.state["exp_avg"].clone() for slot in slots]
        momenta = [slot.track_mean(slot.gradient) for slot in slots]
        for slot in slots:
            slot.state["exp_avg"].mul_(slot.state["scaling_coeff"])
        joined = torch.cat(momenta)
        mean.average([joined])
        copy_parts(joined, momenta)
        for slot, last in zip(slots, before, strict=True):
            slot.state["exp_avg"].div_(slot.state["scaling_coeff"])
            slot.mask()
            self._step_frozen(slot, last)

    def _step_dense(self, slot: ParameterStep) -> None:
        slot.track_mean(slot.gradient)
        slot.track_square(slot.gradient)
        slot.track_square(slot.gradient, "exp_avg_sq_fresh")
        update = slot.decayed(adam_update(slot))
        weights, length = float(slot.weights.norm()), float(update.norm())
        coeff = 1.0
        if weights and length:
            coeff = min(self.coeffs[1], max(self.coeffs[0], weights / length))
        if coeff != 1:
            average = slot.state["lamb_coeff"]
            average.mul_(self.coeff_beta).add_((1 - self.coeff_beta) * coeff)
        slot.subtract(update, slot.group["lr"] * coeff)

    def _step_frozen(self, slot: ParameterStep, last: Float[Tensor, " n"]) -> None:
        beta = slot.group["betas"][0]
        gradient = last.mul_(-beta).add_(slot.state["exp_avg"]).div_(1 - beta)
        slot.track_square(gradient, "exp_avg_sq_fresh")
        plain = adam_update(slot, frozen=True)
        update = slot.decayed(plain)
        ratio = slot.denominator() / slot.denominator("exp_avg_sq_fresh")
        factor = self._limited(slot, float(ratio.max()), plain, update)
        slot.state["last_factor"].fill_(factor)
        slot.subtract(update, slot.group["lr"] * float(slot.state["lamb_coeff"]) * factor)

    def _limited(
        self,
        slot: ParameterStep,
        factor: float,
        plain: Float[Tensor, " n"],
        update: Float[Tensor, " n"],
    ) -> float:
        """Returns the factor of a layer within its limits."""
        length = float(update.norm())
        if slot.group["weight_decay"] and length:
            share = min(1.0, float(plain.norm()) / length)
            factor = factor * share + (1 - share)
        factor = min(self.factors[1], max(self.factors[0], factor))
        last, change = float(slot.state["last_factor"]), self.factor_threshold
        return min(last * (1 + change), max(last * (1 - change), factor))


def scale_alike(slots: Sequence[ParameterStep]) -> None:
    """Sets the factors by which momenta have one scale, so that one scale suits all signs."""
    scales = [*scales_of(slots)]
    mean = sum(scales) / len(scales)
    for slot, scale in zip(slots, scales, strict=True):
        slot.state["scaling_coeff"].fill_(mean / scale if scale else 1.0)


def scales_of(slots: Sequence[ParameterStep]) -> Iterator[float]:
    """Yields the root mean square of each momentum."""
    for slot in slots:
        yield float(slot.state["exp_avg"].square().mean().sqrt())
