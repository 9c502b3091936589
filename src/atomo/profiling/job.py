"""The whole probe of a job, as each of its ranks takes it."""

import torch

from atomo.codecs import make_codec
from atomo.communicators import Direct
from atomo.config import Settings
from atomo.profiling.coding import measure_together
from atomo.profiling.links import measure_links
from atomo.profiling.passes import measure_job, measure_slowing
from atomo.profiling.record import Probed, Subject
from atomo.profiling.together import Together
from atomo.training.job import make_job
from atomo.transports import Transport

__all__ = ["Way", "probe"]

Way = tuple[str, str]
"""A codec, and the reduction that it goes with."""


def probe(
    settings: Settings,
    transport: Transport,
    subject: Subject,
    ways: tuple[Way, ...],
    times: int,
) -> Probed:
    """Measures passes, codecs and links on all ranks at once, which agree on what they found.

    No weight changes, and nothing is left behind.

    Args:
        settings: resolved, of a run without a master and with a bucket for each parameter.
        transport: connects the ranks, every one of which calls this.
        subject: what the file says it is of.
        ways: what to measure the costs of.
        times: how often everything is timed.

    Raises:
        ConfigError: a codec does not go with its reduction.
        TransportError: a rank is gone, or does not answer.
    """
    together = Together(Direct(transport, settings.timeout))
    job, worker = make_job(settings, transport.size), transport.rank + 1
    links = measure_links(together, transport, settings.timeout)
    profile = measure_job(job, together, worker, times)
    slowing = measure_slowing(job, together, worker, times)
    costs = tuple(
        (
            reduction,
            measure_together(
                together, make_codec(code), reduction, profile, times, settings.compression,
                master=False,
            ),
        )
        for code, reduction in ways
    )  # fmt: skip
    transport.drain(settings.timeout)
    shapes = {name: torch.empty(t.shape, device="meta") for name, t in profile.gradient.items()}
    profile.gradient.update(shapes)  # a prediction needs no more of it
    return Probed(subject, profile, slowing, links, costs)
