"""Rules of communicators: roles of processes, and the settings that each can be used with."""

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
    """True if rank 0 owns the weights and trains nothing itself.

    Raises:
        ConfigError: there is no such communicator.
    """
    return resolve("comm-type", comm_type, COMM_TYPES) == PARAMETER_SERVER


def survives_worker_loss(comm_type: str, hierarchical: str) -> bool:
    """True if a run goes on where one of its workers dies, if its transport does."""
    if has_master(comm_type):
        return True
    name = resolve("comm-type", comm_type, COMM_TYPES)
    return name in REPEATING and canonical_hierarchy(hierarchical) == FLAT


def trainers(processes: int, comm_type: str) -> int:
    """Counts the processes of a job that compute gradients."""
    return processes - has_master(comm_type)


def least_workers(processes: int, comm_type: str, hierarchical: str, min_workers: int) -> int:
    """Counts the workers that a step needs: `min_workers`, or half of them where that is 0; all if
    a run ends with its first loss.
    """
    workers = trainers(processes, comm_type)
    if not survives_worker_loss(comm_type, hierarchical):
        return workers
    return min_workers or -(-workers // 2)


def fitted_codec(codec: Codec[Any], comm_type: str) -> Codec[Any]:
    """Returns the codec as that communicator uses it.

    Raises:
        ConfigError: they do not go together.
    """
    name = resolve("comm-type", comm_type, COMM_TYPES)
    return REDUCTIONS[name].adapt_codec(codec) if name in REDUCTIONS else codec


def own_memory(comm_type: str, momentum: float = 0.0) -> str | None:
    """Returns the memory that this communicator takes, where that is not for the codec to say.

    Args:
        comm_type: the communicator.
        momentum: that of the optimiser; 0 where it has none.
    """
    name = resolve("comm-type", comm_type, COMM_TYPES)
    return REDUCTIONS[name].default_memory(momentum) if name in REDUCTIONS else None


def check_memory(memory: str, comm_type: str) -> None:
    """Raises ConfigError for a memory that does not go with that communicator."""
    name = resolve("comm-type", comm_type, COMM_TYPES)
    fitting = REDUCTIONS[name].memories if name in REDUCTIONS else ()
    if fitting and kind_of(memory).id not in fitting:
        raise ConfigError(
            f"--comm-type {comm_type} goes with --memory {' or '.join(fitting)}, not {memory}: "
            "what is not sent of a sum is known only once the sum is"
        )


def check_weight_sync(comm_type: str, down: str) -> None:
    """Raises ConfigError for a way down from a master that there is not."""
    if not has_master(comm_type) and down.lower() != AUTO_DOWNLINK:
        raise ConfigError(
            f"--down {down}: with --comm-type {comm_type} nothing comes down, since every process "
            f"has weights of its own; leave it out, or give --comm-type {PARAMETER_SERVER}"
        )


def check_hierarchy(comm_type: str, hierarchical: str) -> None:
    """Raises ConfigError for what is no hierarchy, or has a master."""
    if canonical_hierarchy(hierarchical) != FLAT and has_master(comm_type):
        raise ConfigError(
            f"--hierarchical {hierarchical}: with --comm-type {comm_type} workers send to a master "
            f"each by itself; give one of {', '.join(REDUCTIONS)}"
        )


def check_deaths(
    processes: int, comm_type: str, hierarchical: str, min_workers: int, spares: int
) -> None:
    """Raises ConfigError for workers that must be left, or spares, that there cannot be."""
    check_least(processes, comm_type, min_workers, hierarchical)
    check_spares(comm_type, hierarchical, spares)


def check_least(processes: int, comm_type: str, min_workers: int, hierarchical: str) -> None:
    """Raises ConfigError for more workers that must be left than there are."""
    workers = trainers(processes, comm_type)
    if not survives_worker_loss(comm_type, hierarchical) and min_workers not in (0, workers):
        raise ConfigError(
            f"--min-workers {min_workers}: with --comm-type {comm_type}{how_of(hierarchical)} all "
            f"{workers} processes are needed for every step; give 0, or "
            f"--comm-type {fault_tolerant_comm_types()}"
        )
    if min_workers > workers:
        less = " less the master" if has_master(comm_type) else ""
        raise ConfigError(
            f"--min-workers {min_workers}: there are {workers} (--n {processes}{less}); "
            f"give 1..{workers}, or 0 for half of them"
        )


def check_spares(comm_type: str, hierarchical: str, spares: int) -> None:
    """Raises ConfigError for spares that have no place to take."""
    if spares and not survives_worker_loss(comm_type, hierarchical):
        raise ConfigError(
            f"--spares {spares}: with --comm-type {comm_type}{how_of(hierarchical)} nobody takes "
            f"the place of who died; give 0, or --comm-type {fault_tolerant_comm_types()}"
        )


def check_scales(codecs: Iterable[Codec[Any]], comm_type: str, spares: int) -> None:
    """Raises ConfigError for spares beside codecs whose scale all ranks agree on: without a master
    they do not go on without those of them who die.
    """
    for codec in codecs if spares and not has_master(comm_type) else ():
        if shared_scale_codec(codec):
            raise ConfigError(
                f"--spares {spares}: with --comm-type {comm_type} and {codec}, on whose scale all "
                "ranks agree, nobody takes the place of who died; give 0, another codec, or "
                f"--comm-type {PARAMETER_SERVER}"
            )


def how_of(hierarchical: str) -> str:
    """Returns a hierarchy, as it was given; empty: there is none."""
    return "" if canonical_hierarchy(hierarchical) == FLAT else f" --hierarchical {hierarchical}"


def fault_tolerant_comm_types() -> str:
    """Returns the ways to average that go on where a rank dies."""
    return ", ".join((PARAMETER_SERVER, *REPEATING))


def check_limits(comm_type: str, step_timeout: float, grace: float, num_aggregate: int) -> None:
    """Raises ConfigError for steps that end early where all processes take them together, and for
    a grace that nothing comes before.
    """
    if not has_master(comm_type) and (step_timeout or grace):
        raise ConfigError(
            f"--step-timeout {step_timeout:g}, --grace {grace:g}: with --comm-type {comm_type} all "
            f"processes take every step together; give 0, or --comm-type {PARAMETER_SERVER}"
        )
    if grace and not num_aggregate:
        raise ConfigError(
            f"--grace {grace:g} follows the gradients that --num-aggregate waits for, which is 0, "
            "for all; give it, too"
        )


def check_roles(processes: int, comm_type: str, num_aggregate: int) -> None:
    """Raises ConfigError for a job without workers, or for steps of more or fewer than there are.

    Args:
        processes: `--n`.
        comm_type: `--comm-type`.
        num_aggregate: gradients that close a step; 0: those of all workers.
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
