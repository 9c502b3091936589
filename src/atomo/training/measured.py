"""What one rank of a job measures of itself before the first step: its passes, its codec on its own
gradient, and what these cost each other. Weights, buffers and random numbers stay as they were.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from atomo.codecs import Codec
from atomo.comm_types import PARAMETER_SERVER, REDUCTIONS
from atomo.communicators import Compressor, Direct
from atomo.communicators.threads import one_thread
from atomo.data import epoch_seed
from atomo.fusion import plan
from atomo.grouping import ONE
from atomo.memory import make_memory
from atomo.planning import EXCHANGES, Costs, Profile, measure_costs, measure_passes
from atomo.planning.costs import Alone
from atomo.planning.profile import timed_pass
from atomo.probing import (
    Beside,
    Probe,
    answer_uplink,
    measure_beside,
    measure_rounds,
    untouched,
)
from atomo.schedule import phases
from atomo.tasks import Batch
from atomo.training.job import Job, own_codecs
from atomo.transports import Transport

__all__ = ["measured_alike", "measured_by_worker"]

REPETITIONS: Final = 2


def measured_alike(job: Job, transport: Transport, device: torch.device) -> Probe:
    """Of a rank that trains and averages, as all others do."""
    settings = job.settings
    codec, kind = codec_of(job), REDUCTIONS[settings.comm_type]
    probe, profile, costs = computed(job, transport.rank + 1, device, settings.comm_type)
    collective = Direct(transport, settings.timeout)
    return replace(probe, line=measure_rounds(kind, codec, collective, profile.gradient, costs))


def measured_by_worker(job: Job, transport: Transport, device: torch.device) -> Probe:
    """Of a worker of a master, which measures the links."""
    probe, _, _ = computed(job, transport.rank, device, "Allgather")
    answer_uplink(transport, job.settings.timeout)
    return probe


def codec_of(job: Job) -> Codec[Any]:
    """The codec that serves in the end."""
    return phases(job.settings.code, job.settings.code_schedule)[-1].codec


def computed(
    job: Job, worker: int, device: torch.device, reduction: str
) -> tuple[Probe, Profile, Costs]:
    """All but the links."""
    model, codec, settings = job.model.to(device).train(), codec_of(job), job.settings
    batch = batch_of(job, worker, device)
    with untouched(model):
        profile = measure_passes(model, job.workload.objective, batch, REPETITIONS)
        costs = costs_of(job, codec, reduction, profile.gradient)
        beside = measured_beside(job, batch, encoding(job, codec, reduction, profile.gradient))
    decodes = EXCHANGES[settings.comm_type](job.workers).decodes
    probe = Probe.of(costs, profile.ready_s, decodes, beside.stretch)
    return replace(probe, slowing=beside.slowing), profile, costs


def costs_of(job: Job, codec: Codec[Any], reduction: str, gradient: dict[str, Tensor]) -> Costs:
    """Of each parameter with the codec that it has."""
    settings = job.settings
    names = [*reversed(gradient)]
    own = own_codecs(settings, [(name, one.shape) for name, one in gradient.items()])
    codecs = [own.codec(name, codec) for name in names]
    found = {
        one: measure_costs(one, reduction, gradient, REPETITIONS, settings.compression)
        for one in dict.fromkeys([codec, *codecs])
    }
    each = tuple(found[one].each[place] for place, one in enumerate(codecs))
    holds = any(costs.holds for costs in found.values())
    return replace(found[codec], each=each, holds=holds)


def batch_of(job: Job, worker: int, device: torch.device) -> Batch:
    """The first one of this worker; reading it changes nothing."""
    indices = job.shard(worker).indices(1)[: job.settings.batch_size]
    return job.workload.train.batch(indices, epoch_seed(job.settings.seed, 0)).to(device)


def measured_beside(job: Job, batch: Batch, encode: Callable[[], object]) -> Beside:
    """Encoding beside the backward pass, unless it is the backward pass that waits for it."""
    if job.settings.comm_type == PARAMETER_SERVER and torch.get_num_threads() == 1:
        return Beside(slowing=1.0)  # it encodes itself
    parameters = [p for p in job.model.parameters() if p.requires_grad]

    def backward() -> float:
        return timed_pass(job.model, job.workload.objective, batch, parameters)[1]

    return measure_beside(backward, encode, one_thread, REPETITIONS)


def encoding(
    job: Job, codec: Codec[Any], name: str, gradient: dict[str, Tensor]
) -> Callable[[], object]:
    """Encodes a gradient, as one message, with a memory of its own."""
    settings = job.settings
    (bucket,) = plan([(key, one.shape) for key, one in gradient.items()], codec, ONE)
    memory = make_memory(settings.memory, settings.momentum, settings.nesterov, job.workers)
    compressor = Compressor(memory, settings.compression, 1, settings.seed)
    reduction = REDUCTIONS[name](Alone(), compressor)
    whole = torch.cat([gradient[slot.name].flatten() for slot in bucket.slots])

    def encode() -> object:
        memory.begin(float(whole.norm()))
        if bucket.agreeing:
            compressor.agree(compressor.propose(bucket, whole))
        return reduction.encode(bucket, whole.clone(), 1)

    return encode
