"""`--code auto`: before its first step a job measures what codecs cost and lose on its own
gradients, hosts and links, and chooses.

Every worker measures, all at the same time, since they share cores; rank 0 takes the mean of what
they found, chooses, and gives all the answer. A run that continues has the answer in its folder.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

import torch

from atomo.budget import Family, families
from atomo.coding import AUTO
from atomo.config import Settings
from atomo.training.chosen import Chosen, kept_chosen
from atomo.training.job import Job, make_job
from atomo.training.listing import recorded
from atomo.training.measuring import Measured, measure
from atomo.training.plan_records import continued
from atomo.training.proposals import Proposal, codecs_of, promising, proposed
from atomo.training.rehearsal import join_rehearsal, rehearse
from atomo.training.telling import hear, names_of_hosts, tell
from atomo.transports import Transport

__all__ = ["choose_codecs"]

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
            _, job, _ = measured(settings, told["memory"], transport)
            join_rehearsal(job, transport, CPU)
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
    some, job, found = measured(settings, memory, transport)
    best = tried(settings, job, transport, proposed(settings, some, found))
    _, done = continued(settings) or (None, 0)
    took_s = time.perf_counter() - began
    chosen = replace(best, took_s=took_s, hosts=hosts, since=done + 1)
    tell(transport, {"chosen": asdict(chosen)})
    return chosen


def measured(
    settings: Settings, memory: str, transport: Transport
) -> tuple[list[Family], Job, Measured]:
    """What may be chosen, a dense job, and what all ranks find of it together."""
    some, job = families(settings, memory), job_of(settings, transport)
    return some, job, measure(job, transport, CPU, codecs_of(some))


def job_of(settings: Settings, transport: Transport) -> Job:
    """The job with a model of its own, dense, with a message for each tensor."""
    plain = replace(settings, code="sgd", memory="none", fusion="layer")
    return make_job(plain.resolved(), transport.size)


def tried(
    settings: Settings, job: Job, transport: Transport, proposals: Sequence[Proposal]
) -> Chosen:
    """The proposal that real steps are shortest with, of those that promise most."""
    plans = [one.plan(settings) for one in proposals]
    trials = rehearse(job, transport, CPU, plans)
    if not trials:
        return promising(proposals).chosen
    best = next(one.chosen for one in proposals if one.name == trials[0].name)
    return replace(best, trials=trials)
