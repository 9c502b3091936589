"""`--code auto`: before its first step a job measures what codecs cost and lose on its own
gradients, hosts and links, and chooses.

Every worker measures, all at the same time, since they share cores; rank 0 takes the mean of what
they found, chooses, and gives all the answer. A run that continues has the answer in its folder.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch

from atomo.budget import Family, families
from atomo.codecs import Codec
from atomo.codecs.small import goes_dense
from atomo.coding import AUTO
from atomo.config import Settings
from atomo.planning.choice import Candidate, Choice, choose, of_one
from atomo.planning.comparison import WORTH
from atomo.training.chosen import Chosen, kept_chosen, said
from atomo.training.job import Job, make_job
from atomo.training.listing import recorded
from atomo.training.measuring import Measured, measure
from atomo.training.plan_records import continued
from atomo.training.telling import hear, names_of_hosts, tell
from atomo.transports import Transport

__all__ = ["choose_codecs", "codecs_of", "decided"]

CPU: Final = torch.device("cpu")  # `coding.check_auto` refuses others


def choose_codecs(
    settings: Settings, transport: Transport, say: Callable[[str], object] = lambda why: None
) -> Chosen | None:
    """What `--code auto` comes to, alike on all ranks; None where a codec was named.

    Args:
        settings: resolved.
        transport: connects the ranks.
        say: told, on rank 0, why an answer that is there does not serve.

    Raises:
        TransportError: a rank does not take part.
    """
    if settings.code != AUTO:
        return None
    hosts = names_of_hosts(transport, settings.timeout)
    if transport.rank == 0:
        kept = kept_chosen(settings, hosts, say)
        memory = memory_of_checkpoint(settings) if settings.memory == AUTO else settings.memory
        tell(transport, {"chosen": asdict(kept) if kept else None, "memory": memory})
        found = kept or lead(settings, memory, transport, hosts)
    else:
        told = hear(transport, settings.timeout)
        if not told["chosen"]:
            measured(settings, told["memory"], transport)
            told = hear(transport, settings.timeout)
        found = Chosen.read(told["chosen"])
    transport.drain(settings.timeout)
    return found


def memory_of_checkpoint(settings: Settings) -> str:
    """The memory that a run which is continued has; auto: any."""
    folder, step = continued(settings) or (None, 0)
    return str(recorded(folder, step).get("memory", AUTO)) if folder and step else AUTO


def lead(settings: Settings, memory: str, transport: Transport, hosts: tuple[str, ...]) -> Chosen:
    """Rank 0's part: it chooses."""
    began = time.perf_counter()
    some, found = measured(settings, memory, transport)
    best = decided(settings, some, found)
    _, done = continued(settings) or (None, 0)
    took_s = time.perf_counter() - began
    chosen = replace(best, took_s=took_s, hosts=hosts, since=done + 1)
    tell(transport, {"chosen": asdict(chosen)})
    return chosen


def measured(
    settings: Settings, memory: str, transport: Transport
) -> tuple[list[Family], Measured]:
    """What may be chosen, and what all ranks find of it together."""
    some, job = families(settings, memory), job_of(settings, transport)
    return some, measure(job, transport, CPU, codecs_of(some))


def job_of(settings: Settings, transport: Transport) -> Job:
    """The job with a model of its own, dense, with a message for each tensor."""
    plain = replace(settings, code="sgd", memory="none", fusion="layer")
    return make_job(plain.resolved(), transport.size)


def codecs_of(some: Sequence[Family]) -> list[Codec[Any]]:
    """All that are measured, each once."""
    return [*dict.fromkeys(codec for family in some for codec in family.codecs)]


def decided(settings: Settings, some: Sequence[Family], found: Measured) -> Chosen:
    """The fastest choice of all families, or dense gradients where that gains next to nothing."""
    name, at = settings.comm_type, {codec: n for n, codec in enumerate(codecs_of(some))}
    setting, tensors = found.setting, [*reversed(found.setting.profile.gradient.items())]

    def candidate(codec: Codec[Any]) -> Candidate:
        return Candidate(found.costs[at[codec]], found.losses[at[codec]].of_mean(setting.workers))

    def answer(family: Family, codecs: Sequence[Codec[Any]], choice: Choice) -> Chosen:
        picks = zip(tensors, choice.picks, strict=True)
        codes = {n: str(codecs[pick]) for (n, one), pick in picks if not goes_dense(one.shape)}
        return Chosen(
            codes, family.memory, choice.error, family.budget, choice.step_s,
            dense.step_s, 0.0, said(settings),
        )  # fmt: skip

    plain = some[0].codecs[:1]
    # Messages that are searched for are found once the codecs are known.
    grouping = None if settings.grouping.searched else settings.grouping
    dense = of_one(setting, candidate(plain[0]), name, grouping)
    best = answer(some[0], plain, dense)
    for family in some:
        candidates = [candidate(codec) for codec in family.codecs]
        choice = choose(setting, candidates, name, grouping, family.budget)
        if choice.step_s < best.step_s and choice.step_s * WORTH < dense.step_s:
            best = answer(family, family.codecs, choice)
    return best
