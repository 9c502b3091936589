"""`atomo rank`: one rank of a job, as mpirun, srun or torchrun starts it."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final

from atomo.config.settings import Settings
from atomo.core.arguments import Parser
from atomo.core.names import resolve
from atomo.core.process.allocator import keep_freed_memory
from atomo.core.process.error_file import record_error
from atomo.errors import INTERRUPTED, ConfigError
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.display.lines import Display, PlainLines
from atomo.launch.display.published_lines import PublishedLines
from atomo.launch.jobs.host_requests import hosts_of_launcher
from atomo.launch.jobs.mpirun import split_arguments
from atomo.launch.jobs.streams import EVENT_MARK
from atomo.launch.resolve import canonical_settings, inherit_memory
from atomo.launch.run_journal import journal_of
from atomo.training.job.events import Event, Failed, Fence, Met, to_json
from atomo.training.job.requested_hosts import RequestedHosts
from atomo.training.rank import run_rank
from atomo.transports import TRANSPORTS, connect, launched_size

__all__ = ["main"]

Receivers = tuple[Callable[[Event], None], Callable[[int], None]]
TORCH: Final = "torch"  # the transport
ENDING_S: Final = 10.0  # that the launcher has to end a job that failed
DESCRIPTION = """One rank of a job: rank 0 is the master. Options are those of `atomo train`, and
--transport X: how ranks reach each other, one of mpi (which mpirun or srun start; the default) and
torch (torch.distributed over gloo, by torchrun). --n is what the launcher says, if it does.
SIGTERM to a rank of torchrun writes a checkpoint and ends the run with 130.
--ranks-per-host 2,1: refuse to run unless the ranks are on hosts with these numbers of ranks."""
PLACEMENT_FIX: Final = "check --mpi-args, and that the names of the hosts are of different hosts"


def main(words: Sequence[str]) -> int:
    """Runs this rank to the end of its job."""
    try:
        return run(words)
    except BaseException as error:  # before the rank joined its job; later errors end the process
        record_error(error)
        raise


def run(words: Sequence[str]) -> int:
    """Runs this rank, and returns the exit code of the command."""
    as_json = list(words[:2]) == ["--events", "json"]
    ranks_per_host, words = split_placement(words[2:] if as_json else words)
    transport_name, options = split_options(words)
    settings = parse_cli_settings(options, "rank", DESCRIPTION).settings
    if not settings.train_dir:
        raise ConfigError("--train-dir is missing: the folder of the run, the same on every rank")
    settings = canonical_settings(inherit_memory(settings))
    hosts = requested_hosts(settings, ranks_per_host, as_json)
    keep_freed_memory()
    asked_to_end: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked_to_end.append(number))
    transport = connect(transport_name)  # the first that starts MPI, which only ranks may do
    if not as_json and transport_name == TORCH:
        signal.signal(signal.SIGTERM, lambda number, frame: transport.request_end())
    with receivers(as_json, settings, transport.rank == 0) as (tell, ended):
        if as_json:  # only a launcher can do something about it
            transport.set_remote_fence(lambda *process: tell(Fence(*process)))
            tell(Met())

        def interrupted() -> bool:
            return bool(asked_to_end) or transport.end_requested()

        failed = wait_to_be_ended if as_json else ended
        run_rank(settings, transport, tell, interrupted, failed, hosts)
        # Not 0, so that whatever has started the ranks starts them again.
        exit_code = INTERRUPTED if transport.end_requested() else 0
        ended(exit_code)
    return exit_code


def split_placement(words: Sequence[str]) -> tuple[tuple[int, ...], list[str]]:
    """Returns the requested numbers of ranks on hosts, none if not given, and the other options."""
    own = Parser(prog="atomo rank", add_help=False, allow_abbrev=False)
    own.add_argument("--ranks-per-host", default="")
    parsed, others = own.parse_known_args(words)
    counts = parsed.ranks_per_host.split(",") if parsed.ranks_per_host else []
    if not all(count.isdecimal() and int(count) for count in counts):
        raise ConfigError(f"--ranks-per-host {parsed.ranks_per_host!r} is not a list such as 2,1")
    return tuple(map(int, counts)), others


def requested_hosts(
    settings: Settings, ranks_per_host: tuple[int, ...], is_launched: bool
) -> RequestedHosts | None:
    """Returns the hosts that the ranks must be on; None: any hosts.

    Args:
        settings: the settings of the job.
        ranks_per_host: the value of `--ranks-per-host`.
        is_launched: True under `atomo train`, which has compared its options with the environment.
    """
    if ranks_per_host:
        source = "--slurm" if settings.slurm else f"--hostfile {settings.hostfile}"
        named = source if settings.slurm or settings.hostfile else "--ranks-per-host"
        return RequestedHosts(named, PLACEMENT_FIX, ranks_per_host)
    mpi_args = split_arguments(settings.mpi_args)
    return hosts_of_launcher(mpi_args, {} if is_launched else os.environ)


def split_options(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the name of the transport, and the options of the run. Of the ranks that were
    launched some may wait. A number of ranks that is given counts, since it is the last; torchrun
    takes --n for an abbreviation of its own options.
    """
    own = Parser(prog="atomo rank", add_help=False, allow_abbrev=False)
    own.add_argument("--transport", default="mpi")
    own.add_argument("--spares", type=int, default=0)
    parsed, run_options = own.parse_known_args(words)
    size = launched_size(parsed.transport)
    counts = [f"--n={int(size) - parsed.spares}"] if size else []
    spares = [f"--spares={parsed.spares}"] if parsed.spares else []
    return resolve("transport", parsed.transport, TRANSPORTS), [*counts, *spares, *run_options]


@contextmanager
def receivers(as_json: bool, settings: Settings, leads: bool) -> Iterator[Receivers]:
    """Yields the receivers of events and of the exit code of this rank.

    Rank 0 reports events: as lines of JSON for the launcher, which has the journal of the run, or
    for people, with a journal of its own. The exit code ends the journal: after a failure the
    process ends without leaving this block.
    """
    if not leads:
        yield (lambda event: None), (lambda exit_code: None)
    elif as_json:
        yield partial(write, 1), (lambda exit_code: None)
    else:
        with ExitStack() as stack:
            own = journal_of(settings, display_of(settings))
            display, codes = stack.enter_context(own)

            def ended(exit_code: int) -> None:
                codes.append(exit_code)
                stack.close()

            yield display.show, ended


def display_of(settings: Settings) -> Display:
    """Returns the display of events for people."""
    if settings.log_format == "atomo":
        return PublishedLines(sys.stdout)
    return PlainLines(sys.stdout, settings.log_interval)


def write(file: int, event: Event) -> None:
    """Writes a line directly to the pipe, so that lines of several ranks never mix."""
    os.write(file, f"{EVENT_MARK}{to_json(event)}\n".encode())


def wait_to_be_ended(exit_code: int) -> None:
    """Has the launcher end the job. With `--with-ft ulfm` mpirun may hang for ever where several
    ranks abort at once (Open MPI 5.0.11), and ends with 0 now and then.
    """
    with suppress(OSError):  # it is gone
        write(2, Failed(exit_code))  # where it has said why: lines of one pipe keep their order
        time.sleep(ENDING_S)
