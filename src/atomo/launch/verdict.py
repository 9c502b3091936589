"""The exit code of a training, of what mpirun ended with and what the launcher has seen.

mpirun passes on the exit code of some process, which need not be of this package: an exit code
claims what `atomo.errors` says of it only where a rank has said so.
"""

import signal
from dataclasses import dataclass
from typing import Final, final

from atomo.core.process.file_limit import file_limit
from atomo.errors import (
    CUT_OFF,
    AtomoError,
    CheckpointError,
    ConfigError,
    TooFewWorkers,
    TransportError,
)
from atomo.launch.exit_messages import (
    FAREWELL,
    NO_ROOM_FOR_MPI,
    WITHOUT_END,
    lost_after_end_text,
    no_ranks_text,
)

__all__ = ["SIGNALLED", "Observations", "training_exit_code"]

SIGNALLED: Final = 128  # exit codes above it are this plus a signal
# PRRTE's own errors, 256 less their numbers: options, host files, places for ranks, no Python to
# start. 255 is a daemon that does not report.
OWN_ERRORS: Final = frozenset({183, *range(200, 255)})
TOO_LARGE: Final = SIGNALLED + signal.SIGXFSZ
MPI_FILE: Final = 2**24  # bytes; Open MPI's shared memory lies in files of up to this size
LOSSES: Final = frozenset({TransportError.exit_code, TooFewWorkers.exit_code, CUT_OFF})
# Codes up to `SIGNALLED` that are believed without a word of a rank: they claim little.
BELIEVED: Final = frozenset(
    error.exit_code for error in (AtomoError, ConfigError, TransportError)
)  # fmt: skip


@final
@dataclass(frozen=True)
class Observations:
    """Observations of a job whose mpirun has ended."""

    failed: int | None
    """The exit code of the first rank that said that it cannot go on."""
    ended: bool
    """True if the run came to its end, with all that it writes written."""
    met: bool
    """True if all ranks were there."""
    complained: bool
    """True if a rank has said why it ends."""
    ended_by_launcher: bool
    """True if the launcher has ended the job."""
    overdue: bool
    """True if mpirun outlived the run, and was ended for that."""
    mpi_args: str


def training_exit_code(code: int, seen: Observations) -> tuple[int, str]:
    """Returns the exit code of the training, and a line that explains it; empty: others have done
    so.

    Args:
        code: mpirun's.
        seen: what else is known.
    """
    code = code if seen.failed is None else seen.failed
    if seen.ended:
        return after_the_end(code, seen)
    if seen.failed is not None or seen.ended_by_launcher:
        return code, ""
    if not seen.met and (early := before_the_ranks(code, seen)):
        return early
    if not code:  # mpirun does not always tell that ranks were killed
        return TransportError.exit_code, WITHOUT_END
    if code not in BELIEVED and code <= SIGNALLED and not seen.complained:  # MPI's, or a program's
        return TransportError.exit_code, WITHOUT_END
    return code, ""


def after_the_end(code: int, seen: Observations) -> tuple[int, str]:
    """Ignores a process that is lost once all is written: it costs nothing, and nothing is to be
    repeated.
    """
    if seen.overdue or code == CUT_OFF:
        return 0, FAREWELL
    if code in LOSSES or code > SIGNALLED:
        return 0, "" if seen.ended_by_launcher and seen.failed is None else lost_after_end_text(
            code
        )
    return code, ""


def before_the_ranks(code: int, seen: Observations) -> tuple[int, str] | None:
    """Returns the verdict on an mpirun that brought up no rank and would not the next
    time either.
    """
    limit = file_limit()
    if code == TOO_LARGE:
        return CheckpointError.exit_code, ""  # said already, since it was killed
    if code and not seen.complained and limit is not None and limit < MPI_FILE:
        why = NO_ROOM_FOR_MPI.format(bytes=limit)
        return CheckpointError.exit_code, f"atomo: the ranks did not come up: {why}"
    if code in OWN_ERRORS and not seen.complained:
        return ConfigError.exit_code, no_ranks_text(code, seen.mpi_args)
    return None
