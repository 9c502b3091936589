"""Which processes of a job train: all of them, or all but a master."""

from typing import Any

from atomo.codecs import Codec
from atomo.communicators import PARAMETER_SERVER, REDUCTIONS
from atomo.downlink import AUTO
from atomo.errors import ConfigError
from atomo.names import resolve

__all__ = ["COMM_TYPES", "check_codec", "check_roles", "check_way_down", "has_master", "trainers"]

COMM_TYPES = (PARAMETER_SERVER, *REDUCTIONS)


def has_master(comm_type: str) -> bool:
    """Whether rank 0 owns the weights and trains nothing itself.

    Raises:
        ConfigError: there is no such communicator.
    """
    return resolve("comm-type", comm_type, COMM_TYPES) == PARAMETER_SERVER


def trainers(processes: int, comm_type: str) -> int:
    """How many of the processes of a job compute gradients."""
    return processes - has_master(comm_type)


def check_codec(codec: Codec[Any], comm_type: str) -> None:
    """Raises ConfigError for a codec whose payloads cannot be brought together like that."""
    name = resolve("comm-type", comm_type, COMM_TYPES)
    if name in REDUCTIONS:
        REDUCTIONS[name].check(codec)


def check_way_down(comm_type: str, down: str) -> None:
    """Raises ConfigError for a way down from a master that there is not."""
    if not has_master(comm_type) and down.lower() != AUTO:
        raise ConfigError(
            f"--down {down}: with --comm-type {comm_type} nothing comes down, since every process "
            f"has weights of its own; leave it out, or give --comm-type {PARAMETER_SERVER}"
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
