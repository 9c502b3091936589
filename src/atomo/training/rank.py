"""One rank of a run, whichever it is, and what happens when it fails."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import torch

from atomo.config import Settings, wants_gpu
from atomo.errors import AtomoError, ConfigError
from atomo.training.events import Event
from atomo.training.job import make_job
from atomo.training.master import Master
from atomo.training.worker import Worker
from atomo.transports import Transport

__all__ = ["run_rank"]


def run_rank(
    settings: Settings,
    transport: Transport,
    tell: Callable[[Event], None],
    interrupted: Callable[[], bool],
) -> None:
    """Runs this rank to the end of the job; an error ends the whole job.

    Args:
        settings: the resolved settings, the same on every rank.
        transport: connects the ranks.
        tell: gets the master's events.
        interrupted: tells the master to write a checkpoint and end.
    """
    end: Master | Worker | None = None
    try:
        torch.set_num_threads(settings.threads or share_of_cores(transport))
        device = worker_device(settings, transport)
        job = make_job(settings, transport.size)
        end = (
            Master(job, transport, tell, interrupted)
            if transport.rank == 0
            else Worker(job, transport, device)
        )
        end.run()
        transport.drain(settings.timeout)
    except Exception as error:
        fail(error, transport, 0 if end is None else end.step)


def fail(error: Exception, transport: Transport, step: int) -> NoReturn:
    """Says what went wrong, once and on this rank, and takes the job down with it."""
    # The master counts steps that are done, a worker the one that it is at.
    role, at = ("master", "after step") if transport.rank == 0 else ("worker", "step")
    where = f"rank {transport.rank} ({role}), " + (
        f"{at} {step}" if step else "before the first step"
    )
    known = isinstance(error, AtomoError)
    text = str(error) if known else "".join(traceback.format_exception(error))
    sys.stderr.write(f"atomo: {where}: {text.rstrip()}\n")
    sys.stderr.flush()
    transport.abort(error.exit_code if isinstance(error, AtomoError) else 1)
    raise error


def share_of_cores(transport: Transport) -> int:
    """Threads for this process: the master mostly waits while the workers of its host compute."""
    return max(1, (os.cpu_count() or 1) // max(1, transport.local_size - 1))


def worker_device(settings: Settings, transport: Transport) -> torch.device:
    """The CPU, or this worker's of the GPUs of its host.

    Raises:
        ConfigError: a GPU was asked for, and this host has none that PyTorch can use.
    """
    if not wants_gpu(settings.enable_gpu) or transport.rank == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--enable-gpu {settings.enable_gpu}: PyTorch sees no CUDA device on this host; "
            "give --enable-gpu no to train on the CPU"
        )
    return torch.device("cuda", transport.local_index % torch.cuda.device_count())
