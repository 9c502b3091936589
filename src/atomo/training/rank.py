"""The life of one rank of a run, from its role to its exit after a failure."""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import torch

from atomo.config.checks import CPU, MPI_AUTO
from atomo.config.comm_rules import has_master
from atomo.config.settings import Settings, wants_gpu
from atomo.core.distribution import missing_package
from atomo.core.process.error_file import record_error
from atomo.core.visible import shorten, visible
from atomo.errors import INTERRUPTED, AtomoError, ConfigError
from atomo.training.host_spread import check_spread
from atomo.training.job.events import Caution, Event, Measuring
from atomo.training.job.job import Job
from atomo.training.job.requested_hosts import RequestedHosts
from atomo.training.job.run_control import NO_CONTROL, RunControl
from atomo.training.loop.master import Master
from atomo.training.loop.replicated import Replicated
from atomo.training.loop.worker import Worker
from atomo.training.optim.precision import why_slow
from atomo.training.planner.planner import PlanGroup, plan_job, plan_with_spares
from atomo.training.planner.replan_loop import ReplanLoop
from atomo.training.thread_share import share_of_cores
from atomo.transports import Transport

__all__ = ["run_rank"]


def run_rank(
    settings: Settings,
    transport: Transport,
    tell: Callable[[Event], None],
    interrupted: Callable[[], bool],
    failed: Callable[[int], None] = lambda exit_code: None,
    hosts: RequestedHosts | None = None,
) -> None:
    """Runs this rank to the end of the job; an error ends the whole job.

    Every exception ends the job immediately, also a `SystemExit` of a model or a
    `KeyboardInterrupt` of this process alone: otherwise the other ranks would wait until their
    timeout.

    Args:
        settings: the resolved settings, the same on every rank.
        transport: connects the ranks.
        tell: receives the events of rank 0.
        interrupted: returns True if rank 0 should write a checkpoint and end the run.
        failed: receives the exit code, after the error was printed and before the job is aborted.
        hosts: the hosts that the ranks must be on; None: any hosts.
    """
    end: Master | Worker | Replicated | None = None
    step = 0
    try:
        if hosts is not None:
            check_spread(transport, hosts, settings.timeout)
        torch.set_num_threads(threads_of(settings, transport))
        device = device_of(settings, transport)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # later kernel launches go to this device
        if sums_on_gpus(settings):
            transport.open_device_channels(settings.timeout)
        if wants_gpu(settings.enable_gpu) and transport.rank == 0 and transport.staging:
            tell(Caution(transport.staging))
        if transport.rank == 0 and (why := why_slow(settings.precision, device)):
            tell(Caution(why))
        first = plan_with_spares(
            settings, transport, lambda s, t: plan_job(s, plan_group(s, t, device, tell))
        )
        loop = ReplanLoop(settings, first, transport, device, tell)
        with loop.watching() as control:
            job: Job | None = first
            while job is not None:
                end = make_end(job, transport, device, tell, interrupted, control)
                reason, step = end.run(), end.step
                end = None  # its state is in a checkpoint, and a probe needs the memory
                job = loop.after(job, step, reason)
        transport.drain(settings.timeout)
    except BaseException as error:
        place = where(settings, transport.rank, step if end is None else end.step)
        alone = concerns_one(error, end, transport.rank)
        fail(translate_missing(error), transport, place, failed, alone=alone)


def plan_group(
    settings: Settings,
    transport: Transport,
    device: torch.device,
    tell: Callable[[Event], None],
) -> PlanGroup:
    """Returns the ranks that plan the job; rank 0 reports cautions and the time of the plan."""

    def warn(why: str) -> None:
        tell(Caution(why))

    def note(text: str) -> None:
        tell(Measuring(text))

    return PlanGroup(transport, device, settings.timeout, warn, note)


def make_end(
    job: Job,
    transport: Transport,
    device: torch.device,
    tell: Callable[[Event], None],
    interrupted: Callable[[], bool],
    control: RunControl = NO_CONTROL,
) -> Master | Worker | Replicated:
    """Builds this rank's role: master, worker, or replica in a run without a master."""
    if not has_master(job.settings.comm_type):
        return Replicated(job, transport, device, tell, interrupted, control)
    if transport.rank == 0:
        return Master(job, transport, tell, interrupted, control, device)
    return Worker(job, transport, device)


def translate_missing(error: BaseException) -> BaseException:
    """Returns the error that names the missing extra, in place of Python's."""
    missing = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
    return missing or error


def where(settings: Settings, rank: int, step: int) -> str:
    """Names the rank and the step of an error."""
    role = ""
    if has_master(settings.comm_type):
        role = " (master)" if rank == 0 else " (worker)"
    # A worker has the number of the current step; other roles have that of the last finished step.
    at = "step" if role == " (worker)" else "after step"
    return f"rank {rank}{role}, " + (f"{at} {step}" if step else "before the first step")


def concerns_one(error: BaseException, end: Master | Worker | Replicated | None, rank: int) -> bool:
    """Returns True if this error is likely on this rank alone, and the job can lose this rank."""
    if isinstance(error, KeyboardInterrupt):  # a signal to this process alone
        return rank > 0
    alone = isinstance(end, Worker) or (isinstance(end, Replicated) and end.outlives)
    return alone and not isinstance(error, AtomoError)


def fail(
    error: BaseException,
    transport: Transport,
    place: str,
    failed: Callable[[int], None],
    *,
    alone: bool,
) -> NoReturn:
    """Prints the error once, on this rank, and aborts the job.

    If the error concerns this rank alone and the transport is fault tolerant, only this process
    ends, as after a signal.
    """
    record_error(error)
    leaves = alone and transport.fault_tolerant
    # Bounded: mpirun takes seconds to forward megabytes, and delays the abort by as much.
    text = visible(shorten(reason_of(error).rstrip()))
    with suppress(OSError):  # the reader of stderr may have ended
        sys.stderr.write(f"atomo: {'lost ' * leaves}{place}: {text}\n")
        sys.stderr.flush()
    if leaves:
        transport.exit_rank(AtomoError.exit_code)
    else:
        exit_code = exit_code_of(error)
        failed(exit_code)
        transport.abort(exit_code)
    raise error


def reason_of(error: BaseException) -> str:
    """Returns the reason why a rank ends: a sentence, or the traceback of a defect."""
    if isinstance(error, AtomoError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "this process was interrupted (SIGINT)"
    return "".join(traceback.format_exception(error))


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code of a job that an error ends; the code of a `SystemExit` is ignored."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, AtomoError) else AtomoError.exit_code


def sums_on_gpus(settings: Settings) -> bool:
    """Returns True if dense sums may go from GPU to GPU; a parameter server has no such sums."""
    on_gpu = settings.cuda_aware_mpi == MPI_AUTO and wants_gpu(settings.enable_gpu)
    return on_gpu and not has_master(settings.comm_type)


def threads_of(settings: Settings, transport: Transport) -> int:
    """Returns the number of threads of this process."""
    if settings.threads:
        return settings.threads
    return share_of_cores(settings.comm_type, transport, settings.timeout, settings.spares)


def device_of(settings: Settings, transport: Transport) -> torch.device:
    """Returns the CPU, or this rank's GPU among those of its host.

    Raises:
        ConfigError: the settings want a GPU, but PyTorch sees no GPU on this host.
    """
    is_master = transport.rank == 0 and has_master(settings.comm_type)
    on_cpu = is_master and settings.master_device == CPU
    if on_cpu or not wants_gpu(settings.enable_gpu):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--enable-gpu {settings.enable_gpu}: PyTorch sees no CUDA device on this host; "
            "give --enable-gpu no to train on the CPU"
        )
    return torch.device("cuda", transport.local_index % torch.cuda.device_count())
