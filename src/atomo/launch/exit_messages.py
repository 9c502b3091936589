"""Messages of the launcher about a process that can no longer report itself."""

import signal
from typing import Final

from atomo.core.process.file_limit import file_limit

__all__ = [
    "FAREWELL",
    "NO_ROOM_FOR_MPI",
    "WITHOUT_END",
    "evaluator_failed_text",
    "hanging_text",
    "killed_text",
    "lost_after_end_text",
    "mpirun_hanging_text",
    "never_met_text",
    "no_ranks_text",
    "stopped_text",
]


WITHOUT_END: Final = "atomo: the processes of the job ended before the training did"

NO_ROOM_FOR_MPI: Final = (
    "no file may have more than {bytes:,} bytes here (ulimit -f), and MPI and checkpoints need "
    "larger files; raise the limit with `ulimit -f unlimited`"
)

FAREWELL: Final = (
    "atomo: all files are written; MPI did not finalize in time, because a process is stopped or "
    "gone, and was aborted"
)


def lost_after_end_text(code: int) -> str:
    """Returns a message that a process was lost after the end of the run."""
    return f"atomo: all files are written; after that the job ended with exit code {code}"


def no_ranks_text(code: int, mpi_args: str) -> str:
    """Returns a message that mpirun started no rank; mpirun itself has printed the reason."""
    arguments = f" and --mpi-args {mpi_args!r}" if mpi_args else ""
    return (
        f"atomo: mpirun ended with exit code {code} before it started a rank; its message above is "
        f"about its arguments, so the job is not started again: check the hosts{arguments}"
    )


def killed_text(name: str, number: int, train_dir: str) -> str:
    """Explains the death of a process by signal `number`, and the remedy."""
    killed = f"was killed by signal {number} ({signal.strsignal(number)})"
    if name == "evaluator":
        return f"atomo: the evaluator {killed}; {without_evaluator_text(train_dir)}"
    if number == signal.SIGXFSZ:
        return f"atomo: mpirun {killed}: {NO_ROOM_FOR_MPI.format(bytes=file_limit() or 0)}"
    return (
        f"atomo: mpirun {killed}, by a user or by the system when memory ran out, and its ranks "
        "with it; the same command with the same --train-dir continues from the last checkpoint"
    )


def evaluator_failed_text(code: int, train_dir: str) -> str:
    """Returns a message that the evaluator failed; the evaluator may have printed the reason."""
    return f"atomo: the evaluator ended with exit code {code}; {without_evaluator_text(train_dir)}"


def without_evaluator_text(train_dir: str) -> str:
    """Explains the effect of a missing evaluator, and how to evaluate the remaining checkpoints."""
    return (
        "the training does not need it. `atomo evaluate "
        f"--model-dir {train_dir}` evaluates the remaining checkpoints"
    )


def hanging_text(name: str, grace_s: float) -> str:
    """Explains that a process does not end although it should."""
    if name == "evaluator":
        return f"atomo: the evaluator has not ended within {grace_s:g} s and is killed"
    return (
        f"atomo: mpirun has not ended the job within {grace_s:g} s and is killed: a host may be "
        "out of reach, and its ranks may run on for a while"
    )


def never_met_text(name: str, seconds: float) -> str:
    """Explains that the ranks of a job never met."""
    return (
        f"atomo: {seconds:g} s after the start of the job its ranks have not met, and mpirun is "
        "killed; if the ranks need longer to start, raise --timeout"
    )


def mpirun_hanging_text(name: str, seconds: float) -> str:
    """Explains that mpirun has outlived its ranks."""
    return f"atomo: mpirun has not ended within {seconds:g} s of the end of the run and is killed"


def stopped_text(name: str, timeout_s: float, train_dir: str) -> str:
    """Explains that a process was stopped and not continued."""
    process = "the evaluator" if name == "evaluator" else "mpirun"
    after = f"; {without_evaluator_text(train_dir)}" if name == "evaluator" else ""
    return (
        f"atomo: {process} was stopped (SIGSTOP) for {timeout_s:g} s, the --timeout, and is "
        f"killed; `kill -CONT` in time continues it{after}"
    )
