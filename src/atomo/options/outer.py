"""The outer optimizers of local steps: steps of the anchor, with the mean difference as gradient.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023; Peng,
Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float

from atomo.codecs.spec import read_call
from atomo.core.names import described, nearest, truth
from atomo.errors import ConfigError

__all__ = [
    "AUTO",
    "Outer",
    "OuterSGD",
    "OuterSign",
    "automatic_outer",
    "is_sign",
    "parse_outer",
    "rounds_text",
]

AUTO: Final = "auto"
MOMENTUM: Final = 0.9
MOMENTUM_FROM: Final = 64  # steps a round; momentum was measured to do harm at 16
SETTLED_FROM: Final = 100  # steps a round; the published rate is for 500
SETTLED_RATE: Final = 0.7
RATES: Final[Mapping[int, float]] = MappingProxyType({1: 0.4, 2: 0.6, 4: 0.6, 8: 0.8})
"""The best rate with momentum 0.9, by the number of workers: Charles et al., "Communication-
Efficient Language Model Training Scales Reliably and Robustly", 2025, with 30 steps a round."""


@final
@dataclass(frozen=True)
class OuterSGD:
    """SGD on the anchor, as `torch.optim.SGD` has it.

    Attributes:
        lr: the outer learning rate; 1 without momentum sets the anchor to the mean of the replicas.
        momentum: the outer momentum, from 0 to below 1.
        nesterov: True for Nesterov momentum.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        for name, value in (("lr", self.lr), ("momentum", self.momentum)):
            if not isinstance(value, Real) or isinstance(value, bool):
                raise ConfigError(f"outer: {name} must be a number, got {described(value)}")
        if not isinstance(self.nesterov, bool):
            raise ConfigError(f"outer: nesterov must be yes or no, got {described(self.nesterov)}")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"outer: lr must be above 0 and finite, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"outer: momentum must be in [0, 1), got {self.momentum}")
        if self.nesterov and not self.momentum:
            raise ConfigError("outer: nesterov=yes needs momentum above 0: give nesterov=no")

    @property
    def averages(self) -> bool:
        """True if a step sets the anchor to the mean of the replicas."""
        return self.lr == 1 and not self.momentum

    def at_rate(self, rate: float) -> "OuterSGD":
        """Returns this optimizer, whose rate does not follow that of the inner optimizer."""
        del rate
        return self

    def effective_rate(self, correlation: float) -> float:
        """Returns the rate of a plain step that moves the anchor as far in the long run.

        >>> OuterSGD(0.5, 0.75, nesterov=False).effective_rate(1.0)
        2.0

        Args:
            correlation: the correlation of the mean differences of two consecutive rounds.
        """
        return self.lr * (1 + self.momentum / (1 - self.momentum * correlation))

    @property
    def about(self) -> str:
        """The optimizer and its effective rate in words.

        >>> OuterSGD(1.0, 0.0, nesterov=False).about
        'sgd(lr=1.0, momentum=0.0, nesterov=no), effective rate 1'
        """
        if not self.momentum:
            return f"{self}, effective rate {self.lr:g}"
        low, high = self.effective_rate(0.0), self.effective_rate(1.0)
        return (
            f"{self}, effective rate {low:.3g} if consecutive mean differences are uncorrelated, "
            f"{high:.3g} if they are equal"
        )

    def step(
        self,
        anchor: Float[torch.Tensor, "..."],
        momentum: Float[torch.Tensor, "..."] | None,
        mean: Float[torch.Tensor, "..."],
    ) -> None:
        """Takes a step, in place, in the order of operations of `torch.optim.SGD`.

        Args:
            anchor: the parameter; it becomes the next anchor.
            momentum: the momentum buffer, zeros at first; None without momentum.
            mean: the mean difference.
        """
        direction = mean
        if momentum is not None:
            momentum.mul_(self.momentum).add_(mean)
            direction = mean.add(momentum, alpha=self.momentum) if self.nesterov else momentum
        anchor.sub_(direction, alpha=self.lr)

    def __str__(self) -> str:
        nesterov = "yes" if self.nesterov else "no"
        return f"sgd(lr={self.lr}, momentum={self.momentum}, nesterov={nesterov})"


@final
@dataclass(frozen=True)
class OuterSign:
    """Steps of one size, in the direction of the sign of each mean difference, as DeMo has them.

    Attributes:
        lr: the size of a step; None: the learning rate of the inner optimizer, with its schedule.
        weight_decay: the decoupled weight decay.
    """

    lr: float | None = None
    weight_decay: float = 0.0

    momentum: ClassVar[float] = 0.0
    averages: ClassVar[bool] = False

    def at_rate(self, rate: float) -> "OuterSign":
        """Returns the optimizer at a learning rate of the inner optimizer."""
        return replace(self, lr=rate) if self.lr is None else self

    def effective_rate(self, correlation: float) -> float:
        """Returns the size of a step."""
        del correlation
        return self.lr or 0.0

    def __post_init__(self) -> None:
        for name, value in (("lr", self.lr), ("weight_decay", self.weight_decay)):
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number and 0 <= value < math.inf) and (name, value) != ("lr", None):  # type: ignore[operator]
                raise ConfigError(
                    f"outer: {name} must be a number from 0 and finite, got {described(value)}"
                )

    @property
    def about(self) -> str:
        """The optimizer in words."""
        return f"{self}, steps of one size"

    def step(
        self,
        anchor: Float[torch.Tensor, "..."],
        momentum: Float[torch.Tensor, "..."] | None,
        mean: Float[torch.Tensor, "..."],
    ) -> None:
        """Takes a step, in place; arguments as of `OuterSGD.step`, without momentum."""
        del momentum
        rate = self.lr or 0.0
        anchor.mul_(1 - rate * self.weight_decay).sub_(mean.sign(), alpha=rate)

    def __str__(self) -> str:
        settings = [] if self.lr is None else [f"lr={self.lr}"]
        settings += [f"weight_decay={self.weight_decay}"] if self.weight_decay else []
        return f"sign({', '.join(settings)})" if settings else "sign"


Outer = OuterSGD | OuterSign
DEFAULTS: Final[Mapping[str, tuple[type[Outer], Mapping[str, object]]]] = MappingProxyType(
    {
        "sgd": (OuterSGD, MappingProxyType({"lr": 1.0, "momentum": 0.0, "nesterov": False})),
        "sign": (OuterSign, MappingProxyType({"lr": None, "weight_decay": 0.0})),
    }
)
"""The outer optimizers by name, with the settings of a specification that has none."""


def parse_outer(outer: str | Outer) -> Outer:
    """Returns the outer optimizer that a specification names. Settings have torch's defaults.

    >>> parse_outer("sgd(lr=0.7, momentum=0.9, nesterov=yes)")
    OuterSGD(lr=0.7, momentum=0.9, nesterov=True)
    >>> parse_outer("sgd(lr=1)")
    OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
    >>> parse_outer("sign(weight_decay=0.1)")
    OuterSign(lr=None, weight_decay=0.1)

    Raises:
        ConfigError: it is no specification, another optimizer, or a value is out of range.
    """
    if isinstance(outer, Outer):
        return outer
    if not isinstance(outer, str):
        raise ConfigError(
            "outer must be 'auto', a specification such as 'sgd(lr=0.7, momentum=0.9, "
            f"nesterov=yes)', or an atomo.OuterSGD, got {described(outer)}"
        )
    name, settings = read_call(outer)
    if name.lower() not in DEFAULTS:
        raise ConfigError(f"unknown outer optimizer {name!r}; {nearest(name, [*DEFAULTS, AUTO])}")
    kind, defaults = DEFAULTS[name.lower()]
    for key in settings:
        if key not in defaults:
            raise ConfigError(f"outer: unknown setting {key!r}; {nearest(key, defaults)}")
    # `described` names the value if the constructor refuses its type.
    return kind(**{**defaults, **{key: plain(value) for key, value in settings.items()}})  # type: ignore[arg-type]


def is_sign(outer: str) -> bool:
    """Returns True if a specification names `sign`.

    >>> is_sign("sign(lr=0.01)"), is_sign("auto")
    (True, False)
    """
    return outer.partition("(")[0].strip().lower() == "sign"


def rounds_text(local_steps: str, outer: str) -> str:
    """Describes the rounds of a run in words.

    >>> rounds_text("0: 1; 2: 30", "sgd(lr=1)")
    'local steps 0: 1; 2: 30, outer sgd(lr=1.0, momentum=0.0, nesterov=no), effective rate 1'
    """
    return f"local steps {local_steps}, outer {parse_outer(outer).about}"


def plain(value: object) -> object:
    """Returns a number as float, and a word for yes or no as truth value."""
    if isinstance(value, str):
        return truth(value)
    return float(value) if type(value) is int else value


def automatic_outer(every: int, workers: int, *, feeds_back: bool) -> OuterSGD:
    """Returns the default outer optimizer of a round.

    Momentum repeats what error feedback delivers late, and does harm with short rounds.

    >>> str(automatic_outer(30, 4, feeds_back=False))
    'sgd(lr=1.0, momentum=0.0, nesterov=no)'
    >>> str(automatic_outer(64, 3, feeds_back=False))
    'sgd(lr=0.6, momentum=0.9, nesterov=yes)'
    >>> str(automatic_outer(500, 8, feeds_back=False))
    'sgd(lr=0.7, momentum=0.9, nesterov=yes)'

    Args:
        every: the number of steps in a round.
        workers: the number of replicas.
        feeds_back: True if a memory feeds errors back.
    """
    if feeds_back or every < MOMENTUM_FROM:
        return OuterSGD(1.0, 0.0, nesterov=False)
    if every >= SETTLED_FROM:
        return OuterSGD(SETTLED_RATE, MOMENTUM, nesterov=True)
    return OuterSGD(RATES[max(w for w in RATES if w <= workers)], MOMENTUM, nesterov=True)
