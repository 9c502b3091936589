"""Exchange of gradients of one rank without a master: flat, or dense inside its host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from atomo.codecs.rows import RowGradient
from atomo.config.comm_rules import survives_worker_loss
from atomo.config.comm_types import REDUCTIONS
from atomo.config.local_rules import SENDERS
from atomo.exchange import Collective, Communicator, Compressor, Direct, Pipeline, Reduction
from atomo.exchange.collectives.hosts import Hosts, find_hosts, rails_of
from atomo.exchange.collectives.intra_host_group import join_host
from atomo.exchange.elastic import ElasticCommunicator, ElasticGroup
from atomo.exchange.engine.pipeline import Averaged
from atomo.exchange.reductions.hierarchical import Hierarchical, MeanSender
from atomo.exchange.reductions.senders import MeanOverSenders
from atomo.memory import Memory, make_memory
from atomo.training.checkpoints.schema import EXCHANGE, HOSTS, MEMORY
from atomo.training.job.job import Job
from atomo.training.step.row_gradients import row_gradients
from atomo.transports import Subgroup, Transport

__all__ = ["ExchangeSetup", "cautions_of", "make_elastic_group", "make_exchange"]


@final
@dataclass(frozen=True)
class ExchangeSetup:
    """A communicator, and the parts of it that a checkpoint saves."""

    communicator: Communicator
    memory: Memory
    reduction: Reduction[Any, Any] | None
    """None: other ranks of this host compress all gradients."""
    hosts: Hosts
    compressed: frozenset[str]
    """Names of the parameters that this rank compresses and has residuals of."""
    rows: dict[str, RowGradient] | None = None
    """Gradients of embeddings as rows; None: all gradients are dense."""

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state of this rank's exchange, without memories."""
        own = self.reduction.state_dict() if self.reduction else {}
        hosts = {} if self.hosts.flat else {HOSTS: torch.tensor(self.hosts.of)}
        return {EXCHANGE + name: tensor for name, tensor in (own | hosts).items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores this rank's part of the exchange from the joined states of all ranks."""
        if self.reduction:
            own = {n: t for n, t in state.items() if n.partition("/")[2] in self.compressed}
            self.reduction.load_state_dict(own)

    def without_others(self, worker: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns a worker's state without the residuals that belong to other ranks."""
        compressed, scalars = self.compressed, self.memory.scalars
        return {
            name: tensor
            for name, tensor in worker.items()
            if not name.startswith(MEMORY)
            or name.removeprefix(MEMORY) in scalars
            or name.rpartition("/")[2] in compressed
        }


def make_elastic_group(job: Job, transport: Transport) -> ElasticGroup | None:
    """Returns the group of ranks if it may change or has spares; None: a death ends the job.

    A codec with an agreement before encoding, such as a shared scale, has no group: the surviving
    ranks do not repeat the agreement. Nor has a mean over senders, which takes nothing back.
    """
    s = job.settings
    agrees = any(bucket.agreeing for stage in job.stages for bucket in stage.buckets)
    may_change = transport.fault_tolerant or s.spares > 0
    repeats = not agrees and not averages_senders(job)
    survives = survives_worker_loss(s.comm_type, s.hierarchical)
    if not (repeats and may_change and survives):
        return None
    unit = "round" if s.has_local_steps else "step"
    limits = s.least_workers, job.images_of_step, s.timeout
    open_steps = 2 if s.has_local_steps and s.local.is_late else 1
    return ElasticGroup(transport, job.workers, *limits, unit, open_steps)


def averages_senders(job: Job) -> bool:
    """Returns True if the mean of an entry is over the ranks that sent it."""
    return job.settings.has_local_steps and job.settings.outer_mean == SENDERS


def cautions_of(job: Job, group: ElasticGroup | None) -> list[str]:
    """Returns cautions for a run that should survive the death of a worker, but cannot."""
    s = job.settings
    fewer = s.min_workers and s.least_workers < job.workers
    if (group is not None and group.transport.fault_tolerant) or not (fewer or s.spares):
        return []
    option = (
        f"--spares {s.spares}" if s.spares else f"--min-workers {s.min_workers} of {job.workers}"
    )
    return [
        f"{option}: the death of any process ends this run, as no failure detector runs here, or "
        "its codec needs the agreement of all workers on a scale; `atomo train` and "
        "`mpirun --with-ft ulfm` of Open MPI 5 detect failures"
    ]


def make_exchange(
    job: Job, transport: Transport, group: ElasticGroup | None = None
) -> ExchangeSetup:
    """Sets up the exchange of this rank; all ranks call this together.

    Args:
        job: the training run.
        transport: connects the ranks.
        group: the members, if they may change.

    Raises:
        ConfigError: `--hierarchical`, and all ranks are on one host.
        TransportError: another rank does not take part.
    """
    s = job.settings
    everyone = Direct(group.transport if group else transport, s.timeout)
    hosts = find_hosts(s.hierarchical, everyone)
    memory = make_memory(s.memory, s.momentum_of_sgd, s.uses_nesterov, hosts.count)
    if hosts.flat:
        rows = row_gradients(job)
        reduction, pipeline = make_pipeline(job, everyone, memory, transport.rank, rows=rows)
        communicator = ElasticCommunicator(group, everyone, pipeline) if group else pipeline
        compressed = names_in(job, [0] * len(job.exchanged_at(1)), 0)
        return ExchangeSetup(communicator, memory, reduction, hosts, compressed, rows)
    return inside_out(job, transport, everyone, hosts, memory)


def inside_out(
    job: Job, transport: Transport, everyone: Collective, hosts: Hosts, memory: Memory
) -> ExchangeSetup:
    """Sets up the exchange among several ranks of a host, and between hosts."""
    s = job.settings
    inside = join_host(hosts, everyone)
    # A memory that clips needs the norm of the whole gradient: then one rank compresses all of it.
    count = 1 if memory.needs_norm else hosts.rails
    rails = rails_of(job.exchanged_at(1), count)
    if inside.rank >= count:
        communicator = Hierarchical(everyone, inside, rails, None)
        return ExchangeSetup(communicator, memory, None, hosts, frozenset())
    rail = Subgroup(transport, hosts.rail(inside.rank), one_host=False)
    collective = Direct(rail, s.timeout)
    reduction, between = make_pipeline(job, collective, memory, rail.rank, MeanSender(inside))
    communicator = Hierarchical(everyone, inside, rails, between)
    compressed = names_in(job, rails, inside.rank)
    return ExchangeSetup(communicator, memory, reduction, hosts, compressed)


def make_pipeline(
    job: Job,
    collective: Collective,
    memory: Memory,
    number: int,
    averaged: Averaged | None = None,
    rows: dict[str, RowGradient] | None = None,
) -> tuple[Reduction[Any, Any], Pipeline]:
    """Builds the pipeline that compresses and exchanges over all ranks of a collective."""
    s = job.settings
    # An empty mapping is kept too: each step fills it.
    shared_rows = {} if rows is None else rows
    by_senders = averages_senders(job)
    worker = number if by_senders else number + 1  # a mean over senders counts ranks from 0
    compressor = Compressor(memory, s.compression, worker, s.seed, rows=shared_rows)
    kind = MeanOverSenders if by_senders else REDUCTIONS[s.comm_type]
    reduction = kind(collective, compressor)
    threads = torch.get_num_threads()
    return reduction, Pipeline(collective, compressor, reduction, threads, averaged)


def names_in(job: Job, rails: Sequence[int], rail: int) -> frozenset[str]:
    """Returns the parameters of the buckets in a rail."""
    buckets = (bucket for bucket in job.exchanged_at(1) if rails[bucket.number] == rail)
    return frozenset(slot.name for bucket in buckets for slot in bucket.slots)
