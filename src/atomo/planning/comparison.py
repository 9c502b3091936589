"""Comparison of predicted steps: codecs under their communicators, and dense gradients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

from atomo.config.comm_types import PARAMETER_SERVER
from atomo.options.grouping import bucket_caps
from atomo.planning.costs import Costs
from atomo.planning.prediction import Scenario, best_step, break_even, predict
from atomo.planning.rails import HIERARCHICAL, flat_name

__all__ = [
    "BASELINE",
    "DENSE",
    "MIN_GAIN",
    "OTHER_SIZES",
    "Comparison",
    "compare",
    "compression_pays",
    "fastest_methods",
]

DENSE: Final = ("sgd", "bf16")
# With other communicators, ranks first agree on the entries to send: the error of the codec alone
# says little.
FRAMES: Final = (PARAMETER_SERVER, "Allgather", "Allreduce")
BASELINE: Final = "bf16"  # over Allreduce; compression must be faster
OTHER_SIZES: Final = (8, 64, 1024)  # workers
MIN_GAIN: Final = 1.02  # ratio of step times; a smaller gain is not worth a codec's error


@final
@dataclass(frozen=True)
class Comparison:
    """The predicted step of one codec under one communicator."""

    code: str
    communicator: str
    hierarchical: bool
    """True if sums inside a host are dense, and the codec serves between hosts."""
    step_s: float
    least_step_s: float
    """With the best of all partitions into messages."""
    bucket_cap_mb_list: tuple[float, ...]
    """The partition as PyTorch's DistributedDataParallel takes it: MiB of each message."""
    fusion: str
    messages: int
    sent_bytes: float
    link_s: float
    codec_s: float
    to_base: float
    """Steps in the time of one step of bf16 over Allreduce."""
    pays_below: float
    """Bandwidth in bits a second; 0: on no link, inf: on every link."""
    steps_s: Mapping[str, float]
    """Step times by other numbers of workers."""
    error: float | None = None
    """Squared error of the decoded gradient over its squared norm; None: not measured."""


def compare(
    scenario: Scenario,
    measured: Sequence[tuple[Costs, str]],
    errors: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[Comparison]:
    """Predicts a step of each codec and communicator.

    Args:
        scenario: the workers and their links.
        measured: costs of codecs, each with a communicator that supports the codec.
        errors: of codecs, for communicators that send the codec's frames unchanged.
    """
    (base,) = (c for c, name in measured if name == "Allreduce" and c.spec == BASELINE)
    base_s = predict(scenario, base, "Allreduce").step_s
    for costs, name in measured:
        prediction, best = predict(scenario, costs, name), best_step(scenario, costs, name)
        steps_s = {
            str(n): predict(replace(scenario, workers=n), costs, name).step_s for n in OTHER_SIZES
        }
        yield Comparison(
            costs.spec,
            flat_name(name),
            name.startswith(HIERARCHICAL),
            prediction.step_s,
            best.step_s,
            bucket_caps(best.cuts, scenario.profile.sizes),
            str(prediction.grouping),
            prediction.messages,
            costs.sent_bytes,
            prediction.link_s,
            prediction.codec_s,
            base_s / prediction.step_s,
            8 * break_even(scenario, costs, name, base),
            steps_s,
            errors.get(costs.spec) if flat_name(name) in FRAMES else None,
        )


def compression_pays(rows: Sequence[Comparison]) -> bool:
    """Returns True if a codec is faster than all dense gradients by at least `MIN_GAIN`."""
    dense = min(row.step_s for row in rows if row.code in DENSE)
    return dense > MIN_GAIN * min(row.step_s for row in rows)


def fastest_methods(
    measured: Sequence[tuple[Costs, str]], rows: Sequence[Comparison]
) -> list[tuple[Costs, str]]:
    """Returns dense gradients by Allreduce, and each codec under its fastest communicator."""
    fastest: dict[str, Comparison] = {}
    for row in rows:
        if row.code not in fastest or row.step_s < fastest[row.code].step_s:
            fastest[row.code] = row
    names = {code: HIERARCHICAL * r.hierarchical + r.communicator for code, r in fastest.items()}
    names |= dict.fromkeys(DENSE, "Allreduce")
    return [(costs, name) for costs, name in measured if names[costs.spec] == name]
