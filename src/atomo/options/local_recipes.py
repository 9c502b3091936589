"""Methods with local steps, as their papers ran them: a name for rounds, outer optimizer and codec.

Settings have the names of `atomo train`; `local_steps` is `every` of `atomo.local_steps`. Settings
of the inner optimizer are those of the papers' language models.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from atomo.options.recipes import RECIPES, Recipe, find_recipe, recipe

__all__ = ["INNER", "LOCAL_RECIPES", "RUN_RECIPES", "run_recipe"]

NESTEROV: Final = "sgd(lr=0.7, momentum=0.9, nesterov=yes)"
MEAN: Final = "sgd(lr=1)"
INNER: Final = ("optimizer", "lr")
"""The settings of the inner optimizer, which `atomo.local_steps` is given as an object."""

LOCAL_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "diloco": recipe(
            "Douillard et al., 2023",
            optimizer="adamw",
            lr=4e-4,
            local_steps=500,
            outer=NESTEROV,
            code="sgd",
            memory="none",
        ),
        # The paper has fragments of three layers; their number is that of a model of nine.
        "streaming-diloco": recipe(
            "Douillard et al., 2025",
            optimizer="adamw",
            lr=4e-4,
            local_steps=30,
            fragments=3,
            overlap=1,
            mix=0.5,
            outer=NESTEROV,
            code="sgd",
            memory="none",
        ),
        # 128 of the 4096 entries of a tile.
        "sparseloco": recipe(
            "Sarfi et al., 2025",
            optimizer="adamw",
            lr=1e-3,
            local_steps=30,
            outer=MEAN,
            outer_mean="workers",
            code="tiletopk(ratio=0.03125, values=lloydmax)",
            memory="residual(decay=0.95)",
        ),
        "muloco": recipe(
            "Therien et al., 2025",
            optimizer="muon",
            lr=0.02,
            local_steps=30,
            outer="sgd(lr=0.7, momentum=0.6, nesterov=yes)",
            code="sgd",
            memory="none",
        ),
        "post-local": recipe(
            "Lin et al., ICLR 2020",
            optimizer="sgd",
            local_steps="0: 1; 1000: 30",
            outer=MEAN,
            code="sgd",
            memory="none",
        ),
        # 32 of the 4096 coefficients of a tile. The memory is DeMo's momentum.
        "demo": recipe(
            "Peng et al., 2024",
            optimizer="sgd",
            lr=4e-4,
            local_steps=1,
            outer="sign",
            outer_mean="senders",
            transform="dct",
            code="tiletopk(ratio=0.0078125)",
            memory="residual(decay=0.999)",
        ),
        # Without a memory: a replica keeps what is not sent in its weights.
        "sparta": recipe(
            "Beton et al., 2025",
            optimizer="adamw",
            local_steps=1,
            outer=MEAN,
            mix="unsent",
            code="randk(ratio=0.005, unbiased=False)",
            memory="none",
        ),
    }
)

WORDS: Final = ("local_steps", "overlap", "mix")
"""Settings that are text in runs."""
# Settings that runs have beside those of `atomo.local_steps`, or in place of them.
OF_RUNS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "diloco": MappingProxyType({"clip_grad": 1.0}),
        # A master sends the anchor of the whole model.
        "streaming-diloco": MappingProxyType({"clip_grad": 1.0, "comm_type": "Allgather"}),
        "sparseloco": MappingProxyType({"clip_grad": 1.0}),
        # Vectors and the last layer have the rate of the matrices, whose steps are as long as
        # Adam's: the published rate is one of shorter steps.
        "muloco": MappingProxyType({"lr": 4e-3}),
        # A run counts epochs where `atomo.local_steps` counts steps.
        "post-local": MappingProxyType({"local_steps": "0: 1; 5: 30"}),
        # The memory is the momentum. Frames of all processes name the senders of an entry.
        "demo": MappingProxyType({"clip_grad": 1.0, "momentum": 0.0, "comm_type": "Allgather"}),
        "sparta": MappingProxyType({"comm_type": "Allgather"}),
    }
)


def of_run(name: str) -> Recipe:
    """Returns a recipe of local steps with the settings of `atomo train`."""
    local = LOCAL_RECIPES[name]
    settings = {**local.settings, **OF_RUNS[name]}
    words = {key: str(settings[key]) for key in WORDS if key in settings}
    return recipe(local.paper, **settings | words)


RUN_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {**RECIPES, **{name: of_run(name) for name in OF_RUNS}}
)
"""The recipes of `atomo train`."""


def run_recipe(name: str) -> Recipe:
    """Returns the recipe of a run with this name.

    Raises:
        ConfigError: no recipe has this name.
    """
    return RUN_RECIPES[find_recipe(name, RUN_RECIPES)]
