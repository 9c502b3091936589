"""Rules of communicators: roles of processes, and the settings that a communicator accepts."""

from collections.abc import Iterable
from typing import Any

from atomo.codecs import Codec
from atomo.codecs.shared_scale import shared_scale_codec
from atomo.config.comm_types import COMM_TYPES, PARAMETER_SERVER, REDUCTIONS, REPEATING
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.memory import kind_of
from atomo.options.hierarchy import FLAT, canonical_hierarchy
from atomo.options.weight_sync import AUTO_DOWNLINK

__all__ = [
    "check_deaths",
    "check_hierarchy",
    "check_limits",
    "check_memory",
    "check_roles",
    "check_scales",
    "check_weight_sync",
    "fitted_codec",
    "has_master",
    "least_workers",
    "own_memory",
    "survives_worker_loss",
    "trainers",
]


def has_master(comm_type: str) -> bool:
    """True if rank 0 is a master, which owns the weights and computes no gradients.

    Raises:
        ConfigError: the communicator is unknown.
    """
    return resolve("comm-type", comm_type, COMM_TYPES) == PARAMETER_SERVER


def survives_worker_loss(comm_type: str, hierarchical: str) -> bool:
    """True if a run continues after the death of a worker, if the transport is fault tolerant."""
    if has_master(comm_type):
        return True
    name = resolve("comm-type", comm_type, COMM_TYPES)
    return name in REPEATING and canonical_hierarchy(hierarchical) == FLAT


def trainers(processes: int, comm_type: str) -> int:
    """Counts the processes of a job that compute gradients."""
    return processes - has_master(comm_type)


def least_workers(processes: int, comm_type: str, hierarchical: str, min_workers: int) -> int:
    """Counts the workers that a step needs: `min_workers`, or half of all if that is 0. A run that
    ends with its first death needs all workers.
    """
    workers = trainers(processes, comm_type)
    if not survives_worker_loss(comm_type, hierarchical):
        return workers
    return min_workers or -(-workers // 2)


def fitted_codec(codec: Codec[Any], comm_type: str) -> Codec[Any]:
    """Returns the codec, adapted to a communicator.

    Raises:
        ConfigError: the communicator cannot use this codec.
    """
    name = resolve("comm-type", comm_type, COMM_TYPES)
    return REDUCTIONS[name].adapt_codec(codec) if name in REDUCTIONS else codec


def own_memory(comm_type: str, momentum: float = 0.0) -> str | None:
    """Returns the memory that a communicator prescribes; None: the codec decides.

    Args:
        comm_type: the communicator.
        momentum: momentum of the optimizer; 0: none.
    """
    name = resolve("comm-type", comm_type, COMM_TYPES)
    return REDUCTIONS[name].default_memory(momentum) if name in REDUCTIONS else None


def check_memory(memory: str, comm_type: str) -> None:
    """Raises ConfigError for a memory that the communicator cannot use."""
    name = resolve("comm-type", comm_type, COMM_TYPES)
    fitting = REDUCTIONS[name].memories if name in REDUCTIONS else ()
    if fitting and kind_of(memory).id not in fitting:
        raise ConfigError(
            f"--comm-type {comm_type} goes with --memory {' or '.join(fitting)}, not {memory}: "
            "the residual of a sum is known only after the sum"
        )


def check_weight_sync(comm_type: str, down: str) -> None:
    """Raises ConfigError for `--down` without a master."""
    if not has_master(comm_type) and down.lower() != AUTO_DOWNLINK:
        raise ConfigError(
            f"--down {down}: with --comm-type {comm_type} no master sends weights, since every "
            f"process updates its own; leave it out, or give --comm-type {PARAMETER_SERVER}"
        )


def check_hierarchy(comm_type: str, hierarchical: str) -> None:
    """Raises ConfigError for an invalid hierarchy, or for one with a master."""
    if canonical_hierarchy(hierarchical) != FLAT and has_master(comm_type):
        raise ConfigError(
            f"--hierarchical {hierarchical}: with --comm-type {comm_type} each worker sends to the "
            f"master directly; give one of {', '.join(REDUCTIONS)}"
        )


def check_deaths(
    processes: int, comm_type: str, hierarchical: str, min_workers: int, spares: int
) -> None:
    """Raises ConfigError for a `--min-workers` or `--spares` that the job cannot have."""
    check_least(processes, comm_type, min_workers, hierarchical)
    check_spares(comm_type, hierarchical, spares)


def check_least(processes: int, comm_type: str, min_workers: int, hierarchical: str) -> None:
    """Raises ConfigError for a `--min-workers` above the number of workers."""
    workers = trainers(processes, comm_type)
    if not survives_worker_loss(comm_type, hierarchical) and min_workers not in (0, workers):
        raise ConfigError(
            f"--min-workers {min_workers}: with --comm-type {comm_type}{how_of(hierarchical)} all "
            f"{workers} processes are needed for every step; give 0, or "
            f"--comm-type {fault_tolerant_comm_types()}"
        )
    if min_workers > workers:
        master_text = " less the master" if has_master(comm_type) else ""
        raise ConfigError(
            f"--min-workers {min_workers}: there are {workers} (--n {processes}{master_text}); "
            f"give 1..{workers}, or 0 for half of them"
        )


def check_spares(comm_type: str, hierarchical: str, spares: int) -> None:
    """Raises ConfigError for spares of a run that cannot admit any."""
    if spares and not survives_worker_loss(comm_type, hierarchical):
        raise ConfigError(
            f"--spares {spares}: with --comm-type {comm_type}{how_of(hierarchical)} a spare cannot "
            f"replace a dead worker; give 0, or --comm-type {fault_tolerant_comm_types()}"
        )


def check_scales(codecs: Iterable[Codec[Any]], comm_type: str, spares: int) -> None:
    """Raises ConfigError for spares with a codec that needs a common scale: without a master, ranks
    cannot agree on a scale after a death.
    """
    for codec in codecs if spares and not has_master(comm_type) else ():
        if shared_scale_codec(codec):
            raise ConfigError(
                f"--spares {spares}: with --comm-type {comm_type} and {codec}, which needs a scale "
                "that all ranks agree on, a spare cannot replace a dead worker; give 0, another "
                f"codec, or --comm-type {PARAMETER_SERVER}"
            )


def how_of(hierarchical: str) -> str:
    """Returns the option of a hierarchy as given; empty: no hierarchy."""
    return "" if canonical_hierarchy(hierarchical) == FLAT else f" --hierarchical {hierarchical}"


def fault_tolerant_comm_types() -> str:
    """Returns the communicators that continue after the death of a rank."""
    return ", ".join((PARAMETER_SERVER, *REPEATING))


def check_limits(comm_type: str, step_timeout: float, grace: float, num_aggregate: int) -> None:
    """Raises ConfigError for limits of a step without a master, and for a grace without
    `--num-aggregate`.
    """
    if not has_master(comm_type) and (step_timeout or grace):
        raise ConfigError(
            f"--step-timeout {step_timeout:g}, --grace {grace:g}: with --comm-type {comm_type} all "
            f"processes take every step together; give 0, or --comm-type {PARAMETER_SERVER}"
        )
    if grace and not num_aggregate:
        raise ConfigError(
            f"--grace {grace:g} begins after --num-aggregate gradients, which is 0, for all; give "
            "--num-aggregate, too"
        )


def check_roles(processes: int, comm_type: str, num_aggregate: int) -> None:
    """Raises ConfigError for a job without workers, or for a `--num-aggregate` that it cannot have.

    Args:
        processes: `--n`.
        comm_type: `--comm-type`.
        num_aggregate: gradients that complete a step; 0: those of all workers.
    """
    workers = trainers(processes, comm_type)
    if not workers:
        raise ConfigError(
            f"--n must be at least 2, got {processes}: 1 master and at least 1 worker"
        )
    if not has_master(comm_type) and num_aggregate not in (0, workers):
        raise ConfigError(
            f"--num-aggregate {num_aggregate}: with --comm-type {comm_type} all {workers} "
            "processes take every step together, and none can be late for it; give 0, or "
            f"--comm-type {PARAMETER_SERVER}"
        )
    if not 0 <= num_aggregate <= workers:
        raise ConfigError(
            f"--num-aggregate {num_aggregate}: a step has the gradients of {workers} workers "
            f"(--n {processes} less the master); give 1..{workers}, or 0 for all"
        )
