"""Networks of other packages: `torchvision:NAME`, `timm:NAME`, `module.path:callable`.

Weights are random, never fetched. A user's callable gets those of `num_classes` and `input_shape`
(channels, height, width) that it accepts, and returns a module.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, final

import torch

from atomo.core.distribution import install_command
from atomo.core.names import find_spelling
from atomo.errors import ConfigError, MissingPackage
from atomo.workloads.models.builder import Shape

__all__ = ["build_foreign", "build_own", "foreign_name", "is_foreign", "is_own", "probe_output"]

CLOSE: Final = 3  # names that an error offers


@final
@dataclass(frozen=True)
class Zoo:
    """A package with many networks."""

    names: Callable[[], Sequence[str]]
    build: Callable[[str, Shape, int], torch.nn.Module]
    listing: str
    """Expression that lists all of its names."""


def torchvision_names() -> Sequence[str]:
    from torchvision import models  # slow to import

    return [str(name) for name in models.list_models(module=models)]


def torchvision_model(name: str, input_shape: Shape, classes: int) -> torch.nn.Module:
    from torchvision import models

    # In training these two would return scores of their side branches as well.
    branched = {"googlenet", "inception_v3"}
    plain = {"aux_logits": False, "init_weights": True} if name in branched else {}
    model: torch.nn.Module = models.get_model(name, weights=None, num_classes=classes, **plain)
    return model


def timm() -> Any:
    """Returns the package, which is an extra.

    Raises:
        MissingPackage: the package is not installed.
    """
    try:
        return import_module("timm")
    except ImportError as error:
        raise MissingPackage(
            f"networks of timm need the package timm ({error}); "
            f"`{install_command('timm')}` brings it"
        ) from error


def timm_names() -> Sequence[str]:
    return [str(name) for name in timm().list_models()]


def timm_model(
    name: str, input_shape: Shape, classes: int, drop_path: float = 0.0
) -> torch.nn.Module:
    # Not every network takes a rate, 0 or not.
    rate = {"drop_path_rate": drop_path} if drop_path else {}
    model: torch.nn.Module = timm().create_model(
        name, pretrained=False, num_classes=classes, in_chans=input_shape[0], **rate
    )
    return model


ZOOS: Final[Mapping[str, Zoo]] = MappingProxyType(
    {
        "torchvision": Zoo(
            torchvision_names, torchvision_model, "torchvision.models.list_models()"
        ),
        "timm": Zoo(timm_names, timm_model, "timm.list_models()"),
    }
)


def is_foreign(name: str) -> bool:
    """True if a network's name is one of another package."""
    return ":" in name


def is_own(name: str) -> bool:
    """True if it names a module to be imported, which a file alone must not have us do."""
    return is_foreign(name) and name.partition(":")[0].lower() not in ZOOS


def foreign_name(name: str) -> str:
    """Returns the spelling of a network's name in its package.

    Raises:
        ConfigError: there is no such package or network; the message offers near matches.
    """
    place, _, inner = name.partition(":")
    zoo = ZOOS.get(place.lower())
    if zoo is None:
        own_callable(name)
        return name
    names = zoo.names()
    if spelling := inner if inner in names else find_spelling(inner, names):
        return f"{place.lower()}:{spelling}"
    offer = near_names(inner, names)
    raise ConfigError(
        f"unknown network {name!r}; {offer}{zoo.listing} lists all {len(names)} that there are"
    )


def build_foreign(name: str, input_shape: Shape, classes: int) -> torch.nn.Module:
    """Builds the network, and sees that it maps images of this shape to scores of the classes.

    Raises:
        ConfigError: there is no such network, or the network does not fit.
    """
    place, _, inner = foreign_name(name).partition(":")
    zoo = ZOOS.get(place)
    if zoo is None:
        model = build_own(name, input_shape, classes)
    else:
        model = build_translating_errors(
            name, classes, lambda: zoo.build(inner, input_shape, classes)
        )
    check_scores(name, model, input_shape, classes)
    return model


def build_own(name: str, input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """Builds a network that `module.path:callable` names, for samples of any shape.

    Raises:
        ConfigError: there is no such callable, or it returns no module.
    """
    build = own_callable(name)
    return build_translating_errors(name, classes, lambda: call(build, input_shape, classes))


def build_translating_errors(
    name: str, classes: int, build: Callable[[], object]
) -> torch.nn.Module:
    """Builds a network, with its errors translated into ours."""
    try:
        model = build()
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise refusal(name, f"cannot be built for {classes} classes", error) from error
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"--network {name} made a {type(model).__name__}, not a torch.nn.Module")
    return model


def own_callable(name: str) -> Callable[..., object]:
    """Imports the callable that `module.path:callable` names.

    Raises:
        ConfigError: the module cannot be imported, or has no such callable.
    """
    place, _, inner = name.partition(":")
    try:
        module = import_module(place)
    except (ImportError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"--network {name}: cannot import {place!r} ({error}); it must be torchvision, timm, or"
            " a module that every host finds: installed, in PYTHONPATH, or where the job starts"
        ) from error
    attribute = getattr(module, inner, None)
    if not callable(attribute):
        names = [key for key, value in vars(module).items() if callable(value)]
        reason = (
            "there is no such callable"
            if attribute is None
            else f"it is a {type(attribute).__name__}"
        )
        raise ConfigError(
            f"--network {name}: {reason}; {near_names(inner, names)}{place} has {len(names)}"
        )
    return attribute  # type: ignore[no-any-return]


def call(build: Callable[..., object], input_shape: tuple[int, ...], classes: int) -> Any:
    """Calls a builder with those of the two arguments that it accepts."""
    arguments: dict[str, object] = {"num_classes": classes, "input_shape": input_shape}
    takes = inspect.signature(build).parameters
    return build(**{name: value for name, value in arguments.items() if name in takes})


def check_scores(name: str, model: torch.nn.Module, input_shape: Shape, classes: int) -> None:
    """Raises ConfigError unless an image becomes a row of scores."""
    got = probe_output(name, model, torch.zeros(1, *input_shape), f"images of {input_shape}")
    if got != (1, classes):
        raise ConfigError(
            f"--network {name} makes {got} of one image of {input_shape}; it must be scores of "
            f"{classes} classes, (1, {classes})"
        )


def probe_output(
    name: str, model: torch.nn.Module, sample: torch.Tensor, noun: str
) -> tuple[int, ...] | str:
    """Returns the output shape of the network for a sample, or the type of an output that is no
    tensor.

    Raises:
        ConfigError: the network raises an error for the sample.
    """
    training = model.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            scores = model.eval()(sample)
    except (TypeError, ValueError, RuntimeError, AssertionError, IndexError) as error:
        raise refusal(name, f"does not take {noun}", error) from error
    model.train(training)
    return tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__


def refusal(name: str, verb: str, error: Exception) -> ConfigError:
    """Returns a ConfigError with the text of another package's error, on one line."""
    reason = " ".join(str(error).split())[:300]
    return ConfigError(f"--network {name} {verb}: {reason or type(error).__name__}")


def near_names(name: str, known: Sequence[str]) -> str:
    """Returns a few names like this one, to continue an error."""
    close = difflib.get_close_matches(name.lower(), known, n=CLOSE, cutoff=0.5)
    return f"did you mean {', '.join(map(repr, close))}? " if close else ""
