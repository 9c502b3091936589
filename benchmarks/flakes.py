"""Repeats the tests with injected faults, and counts the tests that sometimes fail.

    .venv/bin/python benchmarks/flakes.py --repeats 100
    .venv/bin/python benchmarks/flakes.py --repeats 20 --load 8 --all --minutes 60

Each repeat is one run of pytest over the files that inject faults, while `--load` busy processes
run. The script prints the failed tests. The last line has the number of tests, the number of
failures, and the share of repeats with failures. The exit code is 1 if any test failed.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITE = [
    "tests/cli/test_cli_faults.py",
    "tests/cli/test_cli_spares.py",
    "tests/exchange/parameter_server/test_worker_deaths.py",
    "tests/exchange/parameter_server/test_invalid_payloads.py",
    "tests/exchange/parameter_server/test_refused_frames.py",
    "tests/exchange/parameter_server/test_failure_detector.py",
    "tests/exchange/parameter_server/test_slow_workers.py",
    "tests/exchange/parameter_server/test_spares.py",
    "tests/training/folder/test_failpoints.py",
    "tests/training/folder/test_full_disk.py",
    "tests/training/folder/test_left_behind.py",
    "tests/training/folder/test_outages.py",
    "tests/training/folder/test_tampered.py",
]
COUNTS = re.compile(r"(\d+) (passed|failed|error)")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
BUSY = "while True: pass"


def main() -> int:
    """Runs the repeats; returns 1 if any test failed."""
    options = parsed()
    end, failed = time.monotonic() + 60 * options.minutes, Counter[str]()
    tests = repeats = bad = 0
    with busy(options.load):
        while repeats < options.repeats and time.monotonic() < end:
            repeats += 1
            count, names = run_once(options.suite or SUITE, everything=options.all)
            tests, bad = tests + count, bad + bool(names)
            failed.update(names)
            outcome = f"failed: {', '.join(names)}" if names else "passed"
            print(f"repeat {repeats}: {count} tests, {outcome}", flush=True)
    for name, times in failed.most_common():
        print(f"{name}: {times} of {repeats}")
    rate = bad / max(1, repeats)
    tests_per_run = tests / max(1, repeats)
    print(
        f"{repeats} repeats of {tests_per_run:.0f} tests beside a load of {options.load}:", end=" "
    )
    print(f"{failed.total()} failures; some failed in {bad} repeats, {rate:.1%}")
    return 1 if bad else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="*", help="test files; default: those that inject faults")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument(
        "--minutes", type=float, default=600.0, help="time limit for the start of a repeat"
    )
    parser.add_argument("--load", type=int, default=0, help="number of busy processes")
    parser.add_argument(
        "--all", action="store_true", help="also run the slow and long tests: real jobs"
    )
    return parser.parse_args()


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs a number of busy processes."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_once(suite: list[str], *, everything: bool) -> tuple[int, list[str]]:
    """Runs the tests once; returns the number of tests and the names of failed tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--no-header", *suite]
    done = subprocess.run(
        [*command, *(["--long"] if everything else [])], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    counts = {outcome: int(number) for number, outcome in COUNTS.findall(done.stdout)}
    names = FAILED.findall(done.stdout)
    if done.returncode and not names:
        names = [f"pytest, which ended with {done.returncode}"]
        print(done.stdout[-2000:], done.stderr[-2000:])
    return sum(counts.values()), names


if __name__ == "__main__":
    raise SystemExit(main())
