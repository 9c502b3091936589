"""The transports that processes can join a job by. To add one: write its module, then list it."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from atomo.names import resolve
from atomo.transports.base import Transport

__all__ = ["TRANSPORTS", "connect"]

# Modules that have a `connect`. Loaded by who asks: a rank under torchrun may have no MPI.
TRANSPORTS: Mapping[str, str] = MappingProxyType({"mpi": "mpi", "torch": "torch_distributed"})


def connect(name: str) -> Transport:
    """Joins the job that this process was launched in.

    Args:
        name: a key of `TRANSPORTS`, in any case.

    Raises:
        ConfigError: no transport has this name, or nobody launched this process for it.
        TransportError: the others cannot be reached.
    """
    module = TRANSPORTS[resolve("transport", name, TRANSPORTS)]
    transport: Transport = import_module(f"atomo.transports.{module}").connect()
    return transport
