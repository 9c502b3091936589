"""The keyword options that the hooks and `wrap_optimizer` have in common."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, ParamSpec, TypedDict, TypeVar, get_type_hints

from atomo.core.names import nearest
from atomo.memory import Memory
from atomo.options.compression import Compression
from atomo.options.fragments import Fragments
from atomo.options.outer import Outer
from atomo.options.rounds import Every

__all__ = [
    "DEFAULTS",
    "LOCAL_DEFAULTS",
    "CommonOptions",
    "FSDPHookOptions",
    "HookOptions",
    "LocalStepsOptions",
    "OptimizerOptions",
    "RoundOptions",
    "takes_options",
]

P = ParamSpec("P")
T = TypeVar("T")


class ExchangeOptions(TypedDict, total=False):
    """The options of any exchange; `HookOptions` documents each."""

    memory: str | Memory
    code_schedule: str
    dense_below: int
    dense_steps: int
    seed: int
    compression: Compression | None
    timeout_s: float | None


class RoundOptions(ExchangeOptions, total=False):
    """The options of hooks that local steps have too; a step is a round there."""

    hierarchical: str | int


class LocalStepsOptions(RoundOptions, total=False):
    """Keyword options of `local_steps` and of its counterparts for frameworks.

        options: atomo.LocalStepsOptions = {"every": 30, "outer": "auto"}
        optimizer = atomo.local_steps(model, optimizer, "topk(ratio=0.01)", **options)

    `HookOptions` documents the others: `memory`, `code_schedule`, `dense_below`, `dense_steps`,
    `hierarchical`, `seed`, `compression` and `timeout_s`, where a step is a round. All ranks must
    pass the same values.

    Attributes:
        every: the number of steps in a round, or the numbers by steps: {0: 1, 1000: 30}, or
            "0: 1; 1000: 30", averages each of the first 1000 steps.
        outer: the outer optimizer, as a specification, an `atomo.OuterSGD` or `atomo.OuterSign`;
            "auto": a default by `every`, the number of ranks and the memory, which rank 0 prints.
        fragments: the number of parts of the model, or a list of patterns of parameter names for
            each part; one is exchanged every `every / fragments` steps.
        overlap: the number of steps during which the exchange of a fragment continues in the
            background; "round": the mean of a round is applied one round late.
        mix: the weight of a replica's own weights in those that it continues from, from 0 to 1;
            "unsent": a replica keeps its own weights where nothing was sent.
        outer_mean: "workers": the mean of an entry is over all ranks; "senders": over the ranks
            that sent the entry, as in public code of SparseLoCo.
        transform: "dct": codecs and memories have the cosine transform of tiles of the differences,
            as in DeMo; "none": the differences.
        recipe: the name of a published method, such as "diloco", for all of these, the codec and
            the memory; options that are given go before those of the recipe.
        bucket_mb: the size of a bucket, in MB.
    """

    every: Every
    outer: str | Outer
    fragments: Fragments
    overlap: int | str
    mix: float | str
    outer_mean: str
    transform: str
    recipe: str
    bucket_mb: float


class CommonOptions(ExchangeOptions, total=False):
    """The options that all hooks and `wrap_optimizer` take; `HookOptions` documents each."""

    recipe: str
    steps_per_epoch: int
    warmup_steps: int


class FSDPHookOptions(CommonOptions, total=False):
    """The options of `fsdp_hook`; `HookOptions` documents each."""

    momentum: float
    nesterov: bool


class OptimizerOptions(CommonOptions, total=False):
    """The options of `wrap_optimizer`; `HookOptions` documents each."""

    hierarchical: str | int
    noise_damping: bool | None


class HookOptions(FSDPHookOptions, OptimizerOptions, total=False):
    """Keyword options of `ddp_hook`, `accelerate_hook`, `trainer_hook` and `lightning_callback`.

        options: atomo.HookOptions = {"memory": "dgc", "momentum": 0.9}
        state, hook = atomo.ddp_hook(ddp, "topk(ratio=0.01)", **options)

    `fsdp_hook` takes all of them except `hierarchical` and `noise_damping`. `wrap_optimizer` takes
    all of them except `momentum` and `nesterov`, which it reads from the optimizer. All ranks must
    pass the same values. An option that is left out has its default.

    Attributes:
        memory: the memory of each rank, which adds the compression error to a later gradient:
            "none", "residual", "dgc", "momentum", or, in `wrap_optimizer`, "adam"; with settings,
            as in "dgc(clip=1.0)"; or a new object of `atomo.make_memory`, which serves one hook
            on one rank. Default: "auto", the memory that suits the codec and the momentum, as
            `atomo.default_memory` returns it.
        momentum: the momentum of SGD, if the memory applies it before the codec. The optimizer must
            then have none, and `optimizer=` cannot be given too. Default: 0.0.
        nesterov: True if `momentum` is Nesterov momentum. Default: False.
        code_schedule: the codecs that replace `code` later, each with the step from which it
            encodes, such as "1000: topk(ratio=0.05); 2000: topk(ratio=0.01)". Steps count from 0.
            Default: "", no other codec.
        recipe: the name of a published method, such as "dgc", in place of `code`. It sets the
            codec, the memory and the schedule as in its paper; the optimizer must have the momentum
            of the recipe. Default: "", no recipe.
        steps_per_epoch: the number of steps in an epoch, for a recipe with a schedule in epochs.
            Default: 0, not known.
        warmup_steps: the number of first steps in which the ratio of the codec decreases to its
            value, in four stages, as in DGC. Default: 0, no warm-up.
        dense_below: a parameter with fewer elements than this is sent uncompressed, as float32.
            Default: 0.
        dense_steps: the number of first steps in which all parameters are sent uncompressed, as
            float32. Default: 0.
        hierarchical: "yes" sums the gradients of each host uncompressed, and compresses between
            hosts, which are identified by host name. A number such as 8 does so with every 8
            consecutive ranks as one host. Default: "no".
        noise_damping: True multiplies the learning rate of SGD inside `step` by a factor below 1,
            from the measured noise of an unbiased codec without memory, or raises an error if this
            is not possible. False does not. Default: None, True if possible.
        seed: the seed of the random numbers that codecs draw. Default: 0.
        compression: the Blosc settings of the frames. Default: None, `atomo.Compression()`.
        timeout_s: the longest wait for another rank, in seconds. Default: None, the timeout of the
            process group; in `wrap_optimizer` 300.0.
    """


DEFAULTS: Final[HookOptions] = {
    "memory": "auto",
    "momentum": 0.0,
    "nesterov": False,
    "code_schedule": "",
    "recipe": "",
    "steps_per_epoch": 0,
    "warmup_steps": 0,
    "dense_below": 0,
    "dense_steps": 0,
    "hierarchical": "no",
    "noise_damping": None,
    "seed": 0,
    "compression": None,
    "timeout_s": None,
}
"""The defaults, in the order in which signatures list the options."""

LOCAL_DEFAULTS: Final[LocalStepsOptions] = {
    "every": 30,
    "outer": "sgd(lr=0.7, momentum=0.9, nesterov=yes)",
    "fragments": 1,
    "overlap": 0,
    "mix": 0.0,
    "outer_mean": "workers",
    "transform": "none",
    "bucket_mb": 4.0,
    "timeout_s": 300.0,
}
"""The defaults of local steps that differ from those of hooks."""


def takes_options(kind: type, **defaults: object) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function with `**options: Unpack[kind]`.

    The signature of the result lists each option with its type and its default, for `help` and
    editors. A call with an unknown keyword raises TypeError, as without `**options`; the error
    names the nearest keyword.

    Args:
        kind: the options of the function, a TypedDict. beartype refuses `type[CommonOptions]`.
        defaults: those that differ from `DEFAULTS`.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = listed(inspect.signature(function), kind, {**DEFAULTS, **defaults})
        keywords = list(signature.parameters)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            unknown = next((name for name in kwargs if name not in keywords), None)
            if unknown is not None:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {unknown!r}; "
                    f"{nearest(unknown, keywords)}"
                )
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    return decorate


def listed(
    signature: inspect.Signature, kind: type, defaults: Mapping[str, Any]
) -> inspect.Signature:
    """Returns a signature with one keyword for each option in the place of `**options`."""
    types = get_type_hints(kind)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name]
        )
        for name, default in defaults.items()
        if name in types
    ]
    return signature.replace(parameters=own + options)
