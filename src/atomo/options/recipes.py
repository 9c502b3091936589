"""Methods as their papers ran them: a name for a codec, its memory and all that belongs to them.

`atomo train --recipe dgc` is a shorthand for flags, and flags that are given go first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, final

from atomo.codecs.sparse.dgc import WARM_UP
from atomo.core.names import fold, resolve
from atomo.errors import ConfigError

__all__ = ["RECIPES", "Recipe", "find_recipe"]


@final
@dataclass(frozen=True)
class Recipe:
    """Settings of a run that belong together."""

    paper: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def recipe(paper: str, **settings: Any) -> Recipe:
    return Recipe(paper, MappingProxyType(settings))


RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "sgd": recipe("no compression", code="sgd"),
        "fp16": recipe("Micikevicius et al., ICLR 2018", code="fp16"),
        "atomo": recipe("Wang et al., NeurIPS 2018", code="svd(rank=3)"),
        "qsgd-2bit": recipe("Alistarh et al., NIPS 2017", code="qsgd(bits=2)"),
        "qsgd-4bit": recipe("Alistarh et al., NIPS 2017", code="qsgd(bits=4)"),
        "qsgd-8bit": recipe("Alistarh et al., NIPS 2017", code="qsgd(bits=8)"),
        "terngrad": recipe("Wen et al., NIPS 2017", code="terngrad"),
        "natural": recipe("Horvath et al., MSML 2022", code="natural"),
        "topk": recipe("Stich et al., NeurIPS 2018", code="topk(ratio=0.001)", momentum=0.0),
        # With memory and unscaled; its steps have no momentum, and so bear a higher rate.
        "randk": recipe(
            "Stich et al., NeurIPS 2018",
            code="randk(ratio=0.01, unbiased=False)",
            momentum=0.0,
            lr=0.05,
        ),
        # Over its probability and without memory. All workers draw the same entries, so that a
        # variance of 99 times the squared gradient does not average out: steps are damped by it.
        "randk-unbiased": recipe("Konecny and Richtarik, 2016", code="randk(ratio=0.01)"),
        "dgc": recipe(
            "Lin et al., ICLR 2018",
            code="dgc(ratio=0.001)",
            code_schedule="; ".join(
                f"{epoch}: dgc(ratio={ratio})" for epoch, ratio in enumerate(WARM_UP)
            ),
            momentum=0.9,
            nesterov=True,
        ),
        "dragonn": recipe("Wang et al., ICML 2022", code="dragonn(ratio=0.01)"),
        "signsgd": recipe("Bernstein et al., ICML 2018", code="signsgd", lr=1e-4, momentum=0.0),
        "signum": recipe("Bernstein et al., ICLR 2019", code="signum", lr=1e-4),
        # x = x - C(lr g + e): no learning rate outside, and no momentum.
        "efsignsgd": recipe(
            "Karimireddy et al., ICML 2019",
            code="efsignsgd",
            memory="residual(units=update)",
            momentum=0.0,
        ),
        "onebit": recipe("Seide et al., Interspeech 2014", code="onebit"),
        "sketchml": recipe("Jiang et al., SIGMOD 2018", code="sketchml"),
        "lss": recipe("Ge et al., CLUSTER 2021", code="lss"),
    }
)
# Spellings of methods that need more than a codec and a memory: the variance is frozen, ranks
# average the momentum, and the owner of a piece has an error of the mean.
OPTIMIZERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("onebitadam", "1bitadam"), "onebit_adam"),
        **dict.fromkeys(("zerooneadam", "01adam"), "zero_one_adam"),
        **dict.fromkeys(("onebitlamb", "1bitlamb"), "onebit_lamb"),
    }
)


def find_recipe(name: str, known: Iterable[str]) -> str:
    """Returns the spelling in `known` of the name of a recipe.

    Raises:
        ConfigError: no recipe has this name. A method that is an optimizer of `atomo` is named.
    """
    if optimizer := OPTIMIZERS.get(fold(name)):
        raise ConfigError(
            f"recipe {name!r} is an optimizer and no recipe: call `atomo.{optimizer}` in a "
            "training loop that torchrun or mpirun starts; a recipe like it is 'onebit'"
        )
    return resolve("recipe", name, known)
