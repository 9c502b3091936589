"""What the launcher says of a process that cannot say it any more."""

import signal
from typing import Final

__all__ = ["FAREWELL", "WITHOUT_END", "abandoned", "apart", "last_words", "lingers", "stopped"]


WITHOUT_END: Final = "atomo: the processes of the job are gone before it was at its end"


FAREWELL: Final = (
    "atomo: all is written; MPI did not end within its time, since a process is stopped or gone, "
    "and was cut off"
)


def last_words(name: str, number: int, train_dir: str) -> str:
    """What to know of a process that signal `number` has killed, and what to do now."""
    killed = f"was killed by signal {number} ({signal.strsignal(number)})"
    if name == "evaluator":
        return (
            f"atomo: the evaluator {killed}; the training does not need it. What it has not "
            f"evaluated, `atomo evaluate --model-dir {train_dir}` does"
        )
    return (
        f"atomo: mpirun {killed}, by hand or by the system when memory ran out, and its ranks with "
        "it; the same command with the same --train-dir continues from the last checkpoint"
    )


def abandoned(name: str, grace_s: float) -> str:
    """Of a process that does not end although it should."""
    if name == "evaluator":
        return f"atomo: the evaluator has not ended within {grace_s:g} s and is killed"
    return (
        f"atomo: mpirun has not ended the job within {grace_s:g} s and is killed: a host may be "
        "out of reach, and its ranks may go on for a while"
    )


def apart(name: str, seconds: float) -> str:
    """Of a job whose ranks never met."""
    return (
        f"atomo: {seconds:g} s after the start of the job its ranks have not met, and mpirun is "
        "killed; where it takes them longer to start, raise --timeout"
    )


def lingers(name: str, seconds: float) -> str:
    """Of an mpirun that outlives its ranks."""
    return f"atomo: mpirun has not ended within {seconds:g} s of the end of the run and is killed"


def stopped(name: str, timeout_s: float) -> str:
    """Of a process that was stopped and not continued."""
    process = "the evaluator" if name == "evaluator" else "mpirun"
    return (
        f"atomo: {process} was stopped (SIGSTOP) for {timeout_s:g} s, the --timeout, and is "
        "killed; `kill -CONT` in time lets it go on"
    )
