"""A job of which some ranks wait: those that train plan it together, and the others are told."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final

from atomo.config import Settings
from atomo.training.job import Job, make_job
from atomo.training.telling import hear, tell
from atomo.transports import FOREVER_S, Subgroup, Transport

__all__ = ["spared"]

FIRST: Final = 0  # the rank that tells

Plan = Callable[[Settings, Transport], Job]
"""What the ranks of a transport come to together."""


def spared(settings: Settings, transport: Transport, plan: Plan) -> Job:
    """The job, alike on all ranks.

    Args:
        settings: as they were given, resolved.
        transport: connects all ranks, those that wait being the last.
        plan: for those that train. Where nothing is to be measured no rank waits in it for others.
    """
    if not settings.spares or not settings.measures:
        return plan(settings, transport)
    trains = range(settings.n)
    if transport.rank not in trains:
        # How long the others measure nobody knows; who waits in vain is told of the death.
        return make_job(Settings(**hear(transport, FOREVER_S)), transport.size)
    one_host = transport.local_size == transport.size
    job = plan(replace(settings, spares=0), Subgroup(transport, trains, one_host=one_host))
    job = replace(job, settings=replace(job.settings, spares=settings.spares))
    if transport.rank == FIRST:
        tell_those(job, transport)
    return job


def tell_those(job: Job, transport: Transport) -> None:
    """Gives those who wait what the others came to."""
    some = [FIRST, *range(job.settings.n, transport.size)]
    tell(Subgroup(transport, some, one_host=False), asdict(job.settings))
    transport.drain(job.settings.timeout)
