"""The exit code of a training, derived from mpirun's exit code and the launcher's observations.

mpirun returns the exit code of some process, possibly of another program. The meaning that
`atomo.errors` gives a code therefore counts only if a rank has reported the error.
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

__all__ = ["SIGNALLED", "TRANSIENT", "Observations", "training_exit_code"]

SIGNALLED: Final = 128  # exit codes above it are this plus a signal
# PRRTE's own errors, as 256 minus their numbers: options, host files, slots for ranks, a missing
# Python. 255 is a daemon that does not report.
OWN_ERRORS: Final = frozenset({183, *range(200, 255)})
# PMIx says so, now and then, where several jobs start at once; the same start then succeeds.
TRANSIENT: Final = "The PMIx server's listener thread failed to start"
TOO_LARGE: Final = SIGNALLED + signal.SIGXFSZ
MPI_FILE: Final = 2**24  # bytes; Open MPI's shared memory lies in files of up to this size
LOSSES: Final = frozenset({TransportError.exit_code, TooFewWorkers.exit_code, CUT_OFF})
# Codes up to `SIGNALLED` that count without a report of a rank: their meaning is general.
BELIEVED: Final = frozenset(
    error.exit_code for error in (AtomoError, ConfigError, TransportError)
)  # fmt: skip


@final
@dataclass(frozen=True)
class Observations:
    """Observations of a job whose mpirun has ended."""

    failed: int | None
    """The exit code of the first rank that reported a failure; None: no rank did."""
    ended: bool
    """True if the run has ended, with all of its files written."""
    met: bool
    """True if all ranks have met."""
    complained: bool
    """True if a rank has reported why it ends."""
    ended_by_launcher: bool
    """True if the launcher has ended the job."""
    overdue: bool
    """True if mpirun outlived the run, and was ended for this reason."""
    mpi_args: str
    transient: bool = False
    """True if mpirun has reported an error that the same start does not have again."""


def training_exit_code(code: int, seen: Observations) -> tuple[int, str]:
    """Returns the exit code of the training, and a line that explains it; empty: the explanation is
    shown already.

    Args:
        code: mpirun's exit code.
        seen: the launcher's observations.
    """
    code = code if seen.failed is None else seen.failed
    if seen.ended:
        return after_the_end(code, seen)
    if seen.failed is not None or seen.ended_by_launcher:
        return code, ""
    if not seen.met and (early := before_the_ranks(code, seen)):
        return early
    if not code:  # mpirun does not always report that ranks were killed
        return TransportError.exit_code, WITHOUT_END
    if (
        code not in BELIEVED and code <= SIGNALLED and not seen.complained
    ):  # of MPI, or of another program
        return TransportError.exit_code, WITHOUT_END
    return code, ""


def after_the_end(code: int, seen: Observations) -> tuple[int, str]:
    """Ignores a process that is lost after all files are written: no work has to be repeated."""
    if seen.overdue or code == CUT_OFF:
        return 0, FAREWELL
    if code in LOSSES or code > SIGNALLED:
        return 0, "" if seen.ended_by_launcher and seen.failed is None else lost_after_end_text(
            code
        )
    return code, ""


def before_the_ranks(code: int, seen: Observations) -> tuple[int, str] | None:
    """Returns the verdict if mpirun started no rank and a restart would fail again; else None."""
    limit = file_limit()
    if code == TOO_LARGE:
        return CheckpointError.exit_code, ""  # reported already, because mpirun was killed
    if code and not seen.complained and limit is not None and limit < MPI_FILE:
        why = NO_ROOM_FOR_MPI.format(bytes=limit)
        return CheckpointError.exit_code, f"atomo: the ranks did not come up: {why}"
    if code in OWN_ERRORS and not seen.complained and not seen.transient:
        return ConfigError.exit_code, no_ranks_text(code, seen.mpi_args)
    return None
