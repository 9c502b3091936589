"""Interrupts whole jobs at random moments, and counts those that do not end as promised.

    .venv/bin/python benchmarks/interrupts.py --times 100 --seed 7

A job may be anywhere: importing, starting MPI, training, writing, evaluating, ending. One Ctrl-C
ends it, or a second one does; its exit code is 130, or 0 where it had ended before, or it dies of
the signal, which a shell calls 130 too, where Python still starts or already ends; it prints no
other traceback and leaves no process behind. A job takes some seconds, and so does each time.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MARK = "ATOMO_INTERRUPTED"  # in the environment of a job and of all that descends from it
AGAIN_S = 15.0  # until the second Ctrl-C: a checkpoint and an evaluation take less
ENDS_S = 120.0  # after it
PROMISED = (0, 130, -signal.SIGINT, None)
JOB = ["--n=2", "--network=FC", "--batch-size=8", "--threads=1", "--code=sgd", "--max-steps=30"]


def main() -> int:
    """Returns 1 if a job did not end as promised."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole_s = interrupted(Path(folder) / "whole", None)[0]
        print(f"a job takes {whole_s:.1f} s", flush=True)
        bad = 0
        for number in range(options.times):
            after_s = chance.uniform(0.3, 1.1 * whole_s)
            took_s, what = interrupted(Path(folder) / str(number), after_s)
            bad += bool(what)
            print(f"{number}: after {after_s:.2f} s, ended {took_s:.2f} s: {what or 'as promised'}",
                  flush=True)  # fmt: skip
    print(f"{options.times - bad} of {options.times} ended as promised")
    return min(bad, 1)


def interrupted(folder: Path, after_s: float | None) -> tuple[float, str]:
    """Runs a job; returns its duration, and the problems of its end."""
    begun = time.monotonic()
    log = folder.with_suffix(".log")
    words = [sys.executable, "-m", "atomo", "train", *JOB, f"--train-dir={folder}"]
    with log.open("wb") as out:
        job = subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, MARK: folder.name})
    code = None
    for patience_s in [ENDS_S] if after_s is None else [after_s, AGAIN_S, ENDS_S]:
        with suppress(subprocess.TimeoutExpired):
            code = job.wait(patience_s)
            break
        job.send_signal(signal.SIGINT)
    took_s = time.monotonic() - begun
    left = survivors(folder.name)
    text = log.read_text(errors="replace")
    faults = {
        "hangs": code is None,
        f"exit code {code}": code not in PROMISED,
        "a traceback": "Traceback" in text and "KeyboardInterrupt" not in text,
        f"{len(left)} processes left": bool(left),
    }
    for pid in [*left, job.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()
    return took_s, ", ".join(name for name, there in faults.items() if there)


def survivors(name: str) -> list[int]:
    """Returns the processes of a job that are still there, a moment after its end."""
    found = list(members(name))
    end = time.monotonic() + 2
    while found and time.monotonic() < end:
        time.sleep(0.1)
        found = list(members(name))
    return found


def members(name: str) -> list[int]:
    """Returns the processes with the mark of a job."""
    entry, found = f"{MARK}={name}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
