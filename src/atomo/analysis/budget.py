"""Candidates of `--code auto`, and the error that their codecs may have.

The codecs of a run share a memory, so that there are two families. Without a memory, codecs are
unbiased: their errors are noise that averages out. With a memory that feeds errors back, a codec
need only be a contraction. `--memory` selects a family; otherwise both are tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

from atomo.codecs import Codec, make_codec
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.memory import NoMemory, kind_of

__all__ = ["LOSSLESS", "Family", "families"]

LOSSLESS: Final = "sgd"
PLAIN: Final = ("bf16", "natural", "qsgd", "svd(rank=8)", "svd(rank=3)")
FED_BACK: Final = (
    "bf16", "efsignsgd", "svd(rank=3, selection=top)", "topk(ratio=0.1)", "topk(ratio=0.01)",
    "topk(ratio=0.001)",
)  # fmt: skip
SUMMED: Final = ("randk(ratio=0.5)", "randk(ratio=0.1)")  # payloads that an allreduce can sum
# docs/convergence.md measures the cost of errors. With an error of 0.5 and feedback, most of a
# gradient arrives within two steps.
PLAIN_BUDGET: Final = 0.1
FED_BACK_BUDGET: Final = 0.5


@final
@dataclass(frozen=True)
class Family:
    """Codecs that go with the same memory, the first without any error."""

    memory: str
    codecs: tuple[Codec[Any], ...]
    budget: float


def families(settings: Settings, memory: str) -> list[Family]:
    """Returns the families of codecs that a run may choose from.

    Args:
        settings: with `--code auto`.
        memory: the memory of the run; "auto": any.
    """
    momentum = settings.optimizer == "sgd" and settings.momentum > 0
    names = ("none", "dgc" if momentum else "residual") if memory == "auto" else (memory,)
    candidates = [family(settings, name) for name in names]
    return [candidate for candidate in candidates if candidate.codecs]


def family(settings: Settings, memory: str) -> Family:
    """Returns the family of a memory."""
    feeds_back = kind_of(memory).feeds_back
    default = FED_BACK_BUDGET if feeds_back else PLAIN_BUDGET
    budget = default if settings.error_budget is None else settings.error_budget
    sums = SUMMED if settings.comm_type == "Allreduce" and kind_of(memory) is NoMemory else ()
    specs = (LOSSLESS, *(FED_BACK if feeds_back else PLAIN), *sums)
    return Family(memory, tuple(compatible_codecs(settings, memory, specs)), budget)


def compatible_codecs(
    settings: Settings, memory: str, specs: tuple[str, ...]
) -> Iterator[Codec[Any]]:
    """Yields the codecs that are compatible with all other settings."""
    for spec in specs:
        try:
            resolved = replace(settings, code=spec, memory=memory).resolved()
        except ConfigError:
            continue
        yield make_codec(resolved.code)
