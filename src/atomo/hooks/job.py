"""The job of this process: launched by torchrun or mpirun, or a single process."""

import atexit
import os
import sys
from types import TracebackType
from typing import Final

import torch.distributed as dist

from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.collectives.torch_distributed import TorchCollective
from atomo.transports import Transport, connect, network

__all__ = ["join_job"]

# Environment variables that a launcher sets.
TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MPI: Final = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE")


def join_job(timeout_s: float) -> Collective:
    """Joins all ranks of the job.

    These are the ranks of torch.distributed if it is initialized, else those that torchrun or
    mpirun has launched, else this process alone.

    Args:
        timeout_s: the longest wait for another rank, in seconds.
    """
    if dist.is_initialized():
        return TorchCollective(None, timeout_s)
    if all(name in os.environ for name in TORCHRUN):
        dist.init_process_group("gloo")
        atexit.register(leave_job)  # PyTorch may abort if the group still exists at exit
        return TorchCollective(None, timeout_s)
    if any(name in os.environ for name in MPI):
        return Direct(connected(), timeout_s)
    return Direct(network(1)[0], timeout_s)


def leave_job() -> None:
    """Destroys the process group of the job, unless the script has done so."""
    if dist.is_initialized():
        dist.destroy_process_group()


def connected() -> Transport:
    """Connects to MPI. An uncaught error on one rank then aborts the whole job.

    Otherwise the failed rank would wait in MPI_Finalize for ranks that wait for its messages.
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
