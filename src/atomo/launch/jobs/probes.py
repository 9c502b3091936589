"""Probes: files with measurements of hosts and links, and the short jobs that write them."""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from atomo.config.settings import Settings
from atomo.core.arguments import to_arguments
from atomo.errors import ConfigError, DeadlineExpired, TransportError
from atomo.launch.jobs.hosts import assign_processes, read_hosts
from atomo.launch.jobs.mpirun import python_command
from atomo.planning.probe import Probe, ProbeSubject, read_probe

__all__ = ["ProbeRequest", "obtain_probe", "subject_of"]

HERE = "this host"
PROBE_S = 3600.0  # time limit of a job, enough for every codec over the slowest links
END_S = 10.0  # time limit for mpirun to end its ranks on every host
Run = Callable[[Sequence[str]], int]
"""Runs a command line to its end; its exit code."""


@runtime_checkable
class ProbeRequest(Protocol):
    """A description of the run that a probe measures."""

    @property
    def network(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    @property
    def image_size(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def hostfile(self) -> str: ...
    @property
    def mpi_args(self) -> str: ...
    @property
    def probe(self) -> str: ...


def run_here(line: Sequence[str], longest_s: float = PROBE_S) -> int:
    """Runs a job beside this process, and returns its exit code.

    Raises:
        DeadlineExpired: the job ran longer than `longest_s` and was killed.
    """
    with subprocess.Popen(line) as job:
        try:
            return job.wait(longest_s)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExpired(
                f"the probe has not ended within {longest_s:g} s, and was ended: {shlex.join(line)}"
            ) from error
        finally:
            end(job)


def end(job: "subprocess.Popen[bytes]") -> None:
    """Ends a job that still runs: first in a way that lets it end its own processes."""
    if job.poll() is None:
        job.terminate()
        with suppress(subprocess.TimeoutExpired):
            job.wait(END_S)
        job.kill()


def obtain_probe(
    request: ProbeRequest, methods: Sequence[tuple[str, str]], run: Run = run_here
) -> Probe:
    """Reads a probe from a file, or runs a job that measures it first.

    Args:
        request: options of `atomo explain`.
        methods: codecs and reductions that the probe must contain.
        run: starts the job.

    Raises:
        DataError: the file is damaged.
        ConfigError: the file is a probe of another run, or lacks a codec.
        TransportError: the job failed and has printed the reason, or it did not end.
    """
    path = Path(request.probe)
    if not path.exists():
        # Allgather: all ranks are workers, as in the measurements.
        settings = Settings(
            n=request.workers, hostfile=request.hostfile, mpi_args=request.mpi_args,
            comm_type="Allgather",
        )  # fmt: skip
        words = [f"--probe={path.absolute()}" if word.startswith("--probe=") else word
                 for word in to_arguments(request)]  # fmt: skip
        code = run([*python_command(settings), "-m", "atomo", "probe", *words])
        if code or not path.exists():
            raise TransportError(f"the probe ended with exit code {code} and wrote no {path}")
    subject, probe = read_probe(path)
    check_subject(path, subject, subject_of(request, request.workers))
    lacking = set(methods) - {(costs.spec, reduction) for reduction, costs in probe.costs}
    if lacking:
        method = " with ".join(min(lacking))
        raise ConfigError(f"--probe {path} lacks {method}; delete it to measure anew")
    return probe


def subject_of(request: ProbeRequest, ranks: int) -> ProbeSubject:
    """Describes the subject of a probe with these options."""
    hosts = (
        assign_processes(read_hosts(Path(request.hostfile)), ranks)
        if request.hostfile
        else [(HERE, ranks)]
    )
    return ProbeSubject(
        tuple(name for name, count in hosts for _ in range(count)),
        request.network,
        request.dataset,
        request.image_size,
        request.batch_size,
        request.threads,
    )


def check_subject(path: Path, subject: ProbeSubject, requested: ProbeSubject) -> None:
    """Raises ConfigError if a probe's subject differs from the requested one."""
    for name, value in vars(requested).items():
        measured = getattr(subject, name)
        if measured != value:
            label = name.replace("_", "-")
            raise ConfigError(
                f"--probe {path} is of the {label} {shown(measured)}, not {shown(value)}; "
                "give another file, or delete it to measure anew"
            )


def shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
