"""Predictions side by side: codecs under the communicators that they go with, and dense ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

from atomo.grouping import bucket_caps
from atomo.planning.costs import Costs
from atomo.planning.hosts import INSIDE, flat_name
from atomo.planning.prediction import Setting, best_step, break_even, predict

__all__ = ["BASE", "DENSE", "OTHER_SIZES", "Compared", "compared", "compresses", "fastest_ways"]

DENSE: Final = ("sgd", "bf16")
FRAMES: Final = ("Bcast", "Allgather", "Allreduce")  # the others' ranks agree first on what to send
BASE: Final = "bf16"  # over Allreduce: what compression has to beat
OTHER_SIZES: Final = (8, 64, 1024)  # workers
WORTH: Final = 1.02  # steps in the time of one; what gains less is not worth its loss


@final
@dataclass(frozen=True)
class Compared:
    """One codec under one communicator."""

    code: str
    communicator: str
    hierarchical: bool
    """Whether it is dense inside a host, and this between hosts."""
    step_s: float
    least_step_s: float
    """With the best of all partitions into messages."""
    bucket_cap_mb_list: tuple[float, ...]
    """That partition, as PyTorch's DistributedDataParallel takes it: MiB of each message."""
    fusion: str
    messages: int
    sent_bytes: float
    link_s: float
    codec_s: float
    to_base: float
    """How many steps it takes in the time of one of bf16 over Allreduce."""
    pays_below: float
    """Bits a second; 0: nowhere, inf: everywhere."""
    steps_s: Mapping[str, float]
    """By other numbers of workers."""
    error: float | None = None
    """Squared, of what arrives, over the squared norm of the gradient; None: not measured."""


def compared(
    setting: Setting,
    measured: Sequence[tuple[Costs, str]],
    errors: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[Compared]:
    """What each would take.

    Args:
        setting: the workers and their links.
        measured: costs of codecs, each with a communicator that they go with.
        errors: of codecs, where frames are just what they make of a gradient.
    """
    (base,) = (c for c, name in measured if name == "Allreduce" and c.spec == BASE)
    base_s = predict(setting, base, "Allreduce").step_s
    for costs, name in measured:
        one, best = predict(setting, costs, name), best_step(setting, costs, name)
        others = {
            str(n): predict(replace(setting, workers=n), costs, name).step_s for n in OTHER_SIZES
        }
        yield Compared(
            costs.spec,
            flat_name(name),
            name.startswith(INSIDE),
            one.step_s,
            best.step_s,
            bucket_caps(best.cuts, setting.profile.sizes),
            str(one.grouping),
            one.messages,
            costs.sent_bytes,
            one.link_s,
            one.codec_s,
            base_s / one.step_s,
            8 * break_even(setting, costs, name, base),
            others,
            errors.get(costs.spec) if flat_name(name) in FRAMES else None,
        )


def compresses(found: Sequence[Compared]) -> bool:
    """Whether any codec is faster than every dense gradient, by more than is worth a word."""
    dense = min(one.step_s for one in found if one.code in DENSE)
    return dense > WORTH * min(one.step_s for one in found)


def fastest_ways(
    measured: Sequence[tuple[Costs, str]], found: Sequence[Compared]
) -> list[tuple[Costs, str]]:
    """What is dense by Allreduce, and each codec under its fastest communicator."""
    least: dict[str, Compared] = {}
    for one in found:
        if one.code not in least or one.step_s < least[one.code].step_s:
            least[one.code] = one
    ways = {code: INSIDE * one.hierarchical + one.communicator for code, one in least.items()}
    ways |= dict.fromkeys(DENSE, "Allreduce")
    return [(costs, name) for costs, name in measured if ways[costs.spec] == name]
