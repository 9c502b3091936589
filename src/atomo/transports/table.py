"""The transports that processes can join a job by. To add one: write its module, then list it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from atomo.names import resolve
from atomo.transports.base import Transport

__all__ = ["TRANSPORTS", "connect", "launched"]


@dataclass(frozen=True)
class Place:
    """Where a transport is, and where its launchers leave the number of processes."""

    module: str  # with a `connect`; loaded by who asks: a rank under torchrun may have no MPI
    sizes: tuple[str, ...]  # names in the environment


TRANSPORTS: Mapping[str, Place] = MappingProxyType(
    {
        "mpi": Place("mpi", ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
        "torch": Place("torch_distributed", ("WORLD_SIZE",)),
    }
)


def connect(name: str) -> Transport:
    """Joins the job that this process was launched in.

    Args:
        name: a key of `TRANSPORTS`, in any case.

    Raises:
        ConfigError: no transport has this name, or nobody launched this process for it.
        TransportError: the others cannot be reached.
    """
    place = TRANSPORTS[resolve("transport", name, TRANSPORTS)]
    transport: Transport = import_module(f"atomo.transports.{place.module}").connect()
    return transport


def launched(name: str) -> str | None:
    """How many processes the job has, in its launcher's words; None where it does not say."""
    sizes = TRANSPORTS[resolve("transport", name, TRANSPORTS)].sizes
    return next((os.environ[size] for size in sizes if size in os.environ), None)
