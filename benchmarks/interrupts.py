"""Interrupts whole jobs at random times, and counts the jobs that do not end as documented.

    .venv/bin/python benchmarks/interrupts.py --times 100 --seed 7

The interrupt arrives in any phase of a job: import, start of MPI, training, writing, evaluation,
end. One Ctrl-C or a second Ctrl-C must end the job. The exit code is 130, or 0 if the job ended
before the signal. While Python starts or exits, the signal may kill the process, which is 130 in a
shell as well. The job prints no traceback except KeyboardInterrupt, and no process remains. Each of
the `--times` jobs takes several seconds.
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

MARK = "ATOMO_INTERRUPTED"  # in the environment of a job and of its descendants
AGAIN_S = 15.0  # until the second Ctrl-C: longer than a checkpoint and an evaluation
ENDS_S = 120.0  # until the end, after the last Ctrl-C
PROMISED = (0, 130, -signal.SIGINT, None)
JOB = ["--n=2", "--network=FC", "--batch-size=8", "--threads=1", "--code=sgd", "--max-steps=30"]


def main() -> int:
    """Runs the jobs; returns 1 if a job did not end as documented."""
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
            took_s, problems = interrupted(Path(folder) / str(number), after_s)
            bad += bool(problems)
            end = f"ended {took_s:.2f} s: {problems or 'as promised'}"
            print(f"{number}: after {after_s:.2f} s, {end}", flush=True)
    print(f"{options.times - bad} of {options.times} ended as promised")
    return min(bad, 1)


def interrupted(folder: Path, after_s: float | None) -> tuple[float, str]:
    """Runs and interrupts a job; returns its duration, and the problems of its end."""
    start = time.monotonic()
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
    took_s = time.monotonic() - start
    remaining = survivors(folder.name)
    text = log.read_text(errors="replace")
    faults = {
        "hangs": code is None,
        f"exit code {code}": code not in PROMISED,
        "a traceback": "Traceback" in text and "KeyboardInterrupt" not in text,
        f"{len(remaining)} processes left": bool(remaining),
    }
    for pid in [*remaining, job.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()
    return took_s, ", ".join(name for name, present in faults.items() if present)


def survivors(name: str) -> list[int]:
    """Returns the processes of a job that remain two seconds after its end."""
    remaining = list(members(name))
    end = time.monotonic() + 2
    while remaining and time.monotonic() < end:
        time.sleep(0.1)
        remaining = list(members(name))
    return remaining


def members(name: str) -> list[int]:
    """Returns the processes with the mark of a job."""
    entry, pids = f"{MARK}={name}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if entry in (process / "environ").read_bytes().split(b"\0"):
                pids.append(int(process.name))
    return pids


if __name__ == "__main__":
    sys.exit(main())
