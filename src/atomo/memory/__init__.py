"""Memories by name. To add a memory: write its module, then list it in MEMORIES."""

import math
from collections.abc import Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any, Final

from atomo.codecs import Codec, Law, make_codec
from atomo.codecs.shared_scale import shared_scale_codec
from atomo.codecs.spec import read_call
from atomo.core.names import described, nearest, resolve
from atomo.errors import ConfigError
from atomo.memory.adam import EfficientAdam
from atomo.memory.base import Layout, Memory
from atomo.memory.dgc import MomentumCorrection
from atomo.memory.momentum import Momentum
from atomo.memory.none import NoMemory
from atomo.memory.residual import Residual

__all__ = [
    "MEMORIES",
    "EfficientAdam",
    "Layout",
    "Memory",
    "Momentum",
    "MomentumCorrection",
    "NoMemory",
    "Residual",
    "applies_momentum",
    "canonical_memory",
    "check_fits",
    "check_no_momentum",
    "default_memory",
    "kind_of",
    "make_memory",
    "memory_without_momentum",
]

MEMORIES: Mapping[str, type[Memory]] = MappingProxyType(
    {
        memory.id: memory
        for memory in (NoMemory, Residual, MomentumCorrection, Momentum, EfficientAdam)
    }
)


OPTIMIZERS: Final = ("sgd", "adam")


def default_memory(codec: Codec[Any] | str, momentum: float = 0.0, optimizer: str = "sgd") -> str:
    """Returns the memory that `codec` names, or else `none` for an unbiased codec and a residual
    for others.

    Optimizer momentum on top of error feedback can diverge, at rates where plain SGD does not: it
    repeats updates that the residual has already delivered. With momentum and a codec that leaves
    much unsent, the default is therefore the memory that applies momentum before the codec.

    Adam divides a delayed sum by the length of that sum. With Adam and a codec with `suits_adam`,
    the default is therefore the memory that computes Adam's update before the codec, and keeps the
    unsent part of the update.

    >>> default_memory("topk"), default_memory("topk", momentum=0.9), default_memory("qsgd")
    ('residual', 'dgc', 'none')
    >>> default_memory("topk", optimizer="adam")
    'adam'

    Args:
        codec: a codec, or its specification.
        momentum: the momentum that the optimizer would apply to the mean of the gradients.
        optimizer: "sgd" or "adam" (also for AdamW).

    Raises:
        ConfigError: the codec or the optimizer is unknown, or the momentum is not a number.
    """
    codec = codec if isinstance(codec, Codec) else make_codec(codec)
    check_number("momentum", momentum)
    adam = resolve("optimizer", optimizer, OPTIMIZERS) == "adam"
    if codec.memory is not None:
        return codec.memory
    if Law.UNBIASED in codec.laws:
        return NoMemory.id
    if adam:
        return EfficientAdam.id if codec.suits_adam else Residual.id
    # A codec that draws entries without looking at them overshoots with this momentum: the longer
    # an entry waits, the larger its residual, and the older the gradients in it.
    before = momentum and not codec.near_lossless and not codec.shared_seed
    return MomentumCorrection.id if before else Residual.id


def check_number(name: str, value: object) -> None:
    """Raises ConfigError unless a value is a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a number, got {described(value)}")


def check_fits(codec: Codec[Any], memory: str | Memory) -> None:
    """Refuses a memory that a codec cannot work with.

    A codec with a shared scale encodes the gradients for which workers agreed on the scale, so that
    no memory may change them. And error feedback diverges if an error may be as long as the encoded
    gradient: the residual can then grow at every step.

    Raises:
        ConfigError: the memory would change the gradients, or feed such an error back.
    """
    kind = kind_of(memory)
    if shared_scale_codec(codec) and kind is not NoMemory:
        raise ConfigError(f"code {codec!s} goes with memory none, not {kind.id}")
    if kind.feeds_back and codec.error_bound >= 1:
        raise ConfigError(
            f"code {codec!s} with memory {kind.id} diverges: its error, squared, may be "
            f"{times(codec.error_bound)} the gradient's square, and adds up when fed back; give "
            f"memory none{other(codec)}"
        )


def times(bound: float) -> str:
    """Describes the size of an error in words."""
    return f"{bound:.3g} times" if bound < math.inf else "any multiple of"


def other(codec: Codec[Any]) -> str:
    """Returns the hint to the codec setting with which error feedback works; empty if there is
    none.
    """
    return f", or code {codec.id}({codec.contraction_setting})" if codec.contraction_setting else ""


def kind_of(memory: str | Memory) -> type[Memory]:
    """Returns the class of a memory, or the class that a specification names."""
    return type(memory) if isinstance(memory, Memory) else read_memory(memory)[0]


def applies_momentum(memory: str) -> bool:
    """True if a memory applies momentum, or computes an update from gradients."""
    kind = kind_of(memory)
    return kind.has_momentum or kind.makes_update


def memory_without_momentum(memory: str) -> str:
    """Returns the memory without momentum that feeds errors back as this memory does.

    >>> memory_without_momentum("dgc"), memory_without_momentum("none")
    ('residual', 'none')
    """
    if not applies_momentum(memory):
        return memory
    return Residual.id if kind_of(memory).feeds_back else NoMemory.id


def check_no_momentum(memory: str) -> None:
    """Raises ConfigError for a memory that local steps cannot use."""
    if applies_momentum(memory):
        raise ConfigError(
            f"memory {memory} computes a step from gradients, and local steps send differences of "
            "weights: give memory='residual', and momentum to the optimizers"
        )


def canonical_memory(spec: str) -> str:
    """Returns a specification in Atomo's own spelling.

    >>> canonical_memory("Residual(beta=0.9, gamma=1)")
    'residual(beta=0.9, gamma=1.0)'
    >>> canonical_memory("residual(decay=0.95)")
    'residual(beta=0.95)'

    Raises:
        ConfigError: the specification is malformed, or its memory or a setting is unknown.
    """
    make_memory(spec)
    kind, settings = read_memory(spec)
    arguments = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"{kind.id}({arguments})" if arguments else kind.id


def make_memory(
    spec: str, momentum: float = 0.9, nesterov: bool = False, workers: int = 1
) -> Memory:
    """Builds an empty memory.

    >>> make_memory("residual(beta=0.9)").state_dict()
    {}

    Args:
        spec: in the form of a codec's specification: `residual`, `dgc(clip=6.0)`.
        momentum: of the optimizer, for a memory that applies it.
        nesterov: True for Nesterov momentum.
        workers: the number of workers that average their gradients.

    Raises:
        ConfigError: the specification is malformed, or its memory or a setting is unknown.
    """
    check_number("momentum", momentum)
    for name, value, expected_type in (("nesterov", nesterov, bool), ("workers", workers, int)):
        if type(value) is not expected_type:
            raise ConfigError(
                f"{name} must be of type {expected_type.__name__}, got {described(value)}"
            )
    kind, settings = read_memory(spec)
    if kind is MomentumCorrection:
        return MomentumCorrection(momentum, nesterov, workers=workers, **settings)
    return kind(**settings)


def read_memory(spec: object) -> tuple[type[Memory], dict[str, Any]]:
    """Parses a specification into the memory class and its settings, with the declared types."""
    if not isinstance(spec, str):
        raise ConfigError(
            f"a memory is named here, such as 'residual(beta=0.9)', got {described(spec)}"
        )
    name, arguments = read_call(spec)
    kind = MEMORIES[resolve("memory", name, MEMORIES)]
    settings: dict[str, Any] = {}
    for name, value in arguments.items():
        key = kind.synonyms.get(name, name)
        if key not in kind.settings:
            known = [*kind.settings, *kind.synonyms]
            raise ConfigError(f"{kind.id}: unknown setting {name!r}; {nearest(name, known)}")
        if key in settings:
            raise ConfigError(f"{kind.id}: {name} and {key} are one setting, and both are given")
        expected_type = kind.settings[key]
        fitted = float(value) if expected_type is float and type(value) is int else value
        if type(fitted) is not expected_type:
            raise ConfigError(
                f"{kind.id}: {name} must be of type {expected_type.__name__}, got {value!r}"
            )
        settings[key] = fitted
    return kind, settings
