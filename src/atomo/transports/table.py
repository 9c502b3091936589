"""The transports by which a process can join a job. To add one, write its module, then list it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from atomo.core.names import resolve
from atomo.transports.base import Transport

__all__ = ["TRANSPORTS", "connect", "launched_size"]


@dataclass(frozen=True)
class TransportEntry:
    """A transport's module, and the environment variables that hold the number of processes."""

    module: str  # has a `connect`; loaded on demand, as a rank under torchrun may have no MPI
    sizes: tuple[str, ...]  # environment variables


TRANSPORTS: Mapping[str, TransportEntry] = MappingProxyType(
    {
        "mpi": TransportEntry("mpi", ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
        "torch": TransportEntry("torch_distributed", ("WORLD_SIZE",)),
    }
)


def connect(name: str) -> Transport:
    """Joins the job that this process was launched in.

    Args:
        name: a key of `TRANSPORTS`, in any case.

    Raises:
        ConfigError: no transport has this name, or this process was not launched for it.
        TransportError: the other ranks cannot be reached.
    """
    place = TRANSPORTS[resolve("transport", name, TRANSPORTS)]
    transport: Transport = import_module(f"atomo.transports.{place.module}").connect()
    return transport


def launched_size(name: str) -> str | None:
    """Returns the number of processes as the launcher states it; None if it does not."""
    sizes = TRANSPORTS[resolve("transport", name, TRANSPORTS)].sizes
    return next((os.environ[size] for size in sizes if size in os.environ), None)
