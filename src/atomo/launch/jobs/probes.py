"""Probes: a short job that writes one, or the file of an earlier one of the same hosts."""

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
PROBE_S = 3600.0  # in which a job has measured every codec, over however slow a link
END_S = 10.0  # in which mpirun ends its ranks on every host
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
        DeadlineExpired: the job has not ended within `longest_s`, and is ended.
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
    asked: ProbeRequest, ways: Sequence[tuple[str, str]], run: Run = run_here
) -> Probe:
    """Reads a probe from a file, or runs a job that measures it first.

    Args:
        asked: options of `atomo explain`.
        ways: codecs and reductions that must be in it.
        run: starts the job.

    Raises:
        DataError: the file is damaged.
        ConfigError: it is of something else, or lacks a codec.
        TransportError: the job failed, and has said why; or it did not end.
    """
    path = Path(asked.probe)
    if not path.exists():
        # All of them would run elsewhere than here.
        settings = Settings(
            n=asked.workers, hostfile=asked.hostfile, mpi_args=asked.mpi_args,
            comm_type="Allgather",
        )  # fmt: skip
        words = [f"--probe={path.absolute()}" if word.startswith("--probe=") else word
                 for word in to_arguments(asked)]  # fmt: skip
        code = run([*python_command(settings), "-m", "atomo", "probe", *words])
        if code or not path.exists():
            raise TransportError(f"the probe ended with exit code {code} and wrote no {path}")
    subject, found = read_probe(path)
    check_subject(path, subject, subject_of(asked, asked.workers))
    lacking = set(ways) - {(costs.spec, reduction) for reduction, costs in found.costs}
    if lacking:
        one = " with ".join(min(lacking))
        raise ConfigError(f"--probe {path} has nothing of {one}; delete it to measure anew")
    return found


def subject_of(asked: ProbeRequest, ranks: int) -> ProbeSubject:
    """Describes the subject of a probe with these options."""
    hosts = (
        assign_processes(read_hosts(Path(asked.hostfile)), ranks)
        if asked.hostfile
        else [(HERE, ranks)]
    )
    return ProbeSubject(
        tuple(name for name, count in hosts for _ in range(count)),
        asked.network,
        asked.dataset,
        asked.image_size,
        asked.batch_size,
        asked.threads,
    )


def check_subject(path: Path, found: ProbeSubject, asked: ProbeSubject) -> None:
    """Raises ConfigError for a probe of something else than what is asked for."""
    for name, value in vars(asked).items():
        other = getattr(found, name)
        if other != value:
            what = name.replace("_", "-")
            raise ConfigError(
                f"--probe {path} is of the {what} {shown(other)}, not {shown(value)}; "
                "give another file, or delete it to measure anew"
            )


def shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
