"""The job that this process is one of, however it was launched."""

import atexit
import os
import sys
from types import TracebackType
from typing import Final

import torch.distributed as dist

from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.adapter.collective import TorchCollective
from atomo.transports import Transport, connect, network

__all__ = ["join_job"]

# What a launcher tells its processes by.
TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MPI: Final = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE")


def join_job(timeout_s: float) -> Collective:
    """Joins all ranks of the job: those of torch.distributed if it is initialised, or that torchrun
    or mpirun has launched; or this process alone.

    Args:
        timeout_s: the longest wait for another rank.
    """
    if dist.is_initialized():
        return TorchCollective(None, timeout_s)
    if all(name in os.environ for name in TORCHRUN):
        dist.init_process_group("gloo")
        atexit.register(leave_job)  # PyTorch may abort where it is left to chance
        return TorchCollective(None, timeout_s)
    if any(name in os.environ for name in MPI):
        return Direct(connected(), timeout_s)
    return Direct(network(1)[0], timeout_s)


def leave_job() -> None:
    """Ends the process group of the job, unless the script has done so."""
    if dist.is_initialized():
        dist.destroy_process_group()


def connected() -> Transport:
    """Connects to MPI. An error that nobody catches then ends the whole job.

    A rank that ends otherwise would wait in MPI_Finalize for ranks that wait for it.
    """
    transport, shown = connect("mpi"), sys.excepthook

    def end(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        shown(kind, error, traceback)
        sys.stderr.flush()
        transport.abort(1)

    sys.excepthook = end
    return transport
