"""Rounds of local steps over links on which a payload travels for half a minute: who counts as
dead, and how soon.

    .venv/bin/python benchmarks/slow_rounds.py --rate 1mbit --json slow_rounds.jsonl

Each case starts a job on three hosts of a virtual cluster, whose links then slow down to `--rate`.
It counts the live processes that were declared dead in `--rounds` rounds, each with a payload of
LeNet's 1.7 MB from every worker. Then, in the middle of a payload, it kills a worker's process, or
pulls the cable of its host, and measures the seconds until a line says so. Bytes that are seen on
the link of the host show that a payload travels at that moment.

Ends with 1 if a live process was declared dead, or a dead one was not noticed.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from parts.chaos.faults import send
from parts.chaos.job import Cluster, Training

HOSTS: Final = 3
OPTIONS: Final = ["--n=3", "--network=LeNet", "--dataset=Digits", "--code=sgd", "--min-workers=1"]
ROUNDS: Final = ["--local-steps=4", "--eval-freq=1000000", "--resume=never", "--timeout=600"]
LOST: Final = re.compile(r"is gone|died|dead|no answer|does not answer|lost|atomo: restart")
COMM_TYPES: Final = ("Allgather", "ParameterServer")
FAULTS: Final = ("process", "cable")
START_S, NOTICE_S, POLL_S = 300.0, 240.0, 0.05
HALF: Final = 0.5  # of a payload has travelled when the fault comes


def main() -> int:
    """Runs the cases; returns 1 if a check fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", default="1mbit", help="of each link, in each direction")
    parser.add_argument("--rounds", type=int, default=2, help="slow rounds before the fault")
    parser.add_argument("--comm-type", nargs="+", default=COMM_TYPES, choices=COMM_TYPES)
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    parser.add_argument("--json", type=Path, help="file to append the results to")
    options = parser.parse_args()
    results = [
        case(comm_type, fault, options.rate, options.rounds)
        for comm_type in options.comm_type
        for fault in options.faults
    ]
    for result in results:
        print(json.dumps(result), flush=True)
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)
    return int(any(result["false_deaths"] or result["noticed_s"] is None for result in results))


def case(comm_type: str, fault: str, rate: str, rounds: int) -> dict[str, Any]:
    """Runs one job, and returns its figures."""
    with tempfile.TemporaryDirectory() as folder, cluster_in(Path(folder)) as cluster:
        words = [*OPTIONS, *ROUNDS, f"--comm-type={comm_type}"]
        training = Training(cluster, Path(folder) / "run", words)
        try:
            return observed(cluster, training, comm_type, fault, rate, rounds)
        except TimeoutError:
            print("\n".join(training.output), file=sys.stderr)
            raise
        finally:
            for pid in training.ranks().values():
                send(pid, signal.SIGKILL)
            training.end(1.0)


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """Brings a cluster up, and takes it away."""
    cluster = Cluster(folder, HOSTS)
    try:
        yield cluster
    finally:
        cluster.does("down")


def observed(
    cluster: Cluster, training: Training, comm_type: str, fault: str, rate: str, rounds: int
) -> dict[str, Any]:
    """Returns the figures of a job that has just started."""
    wait(lambda: len(training.steps) > 1, START_S, "two rounds")
    for host in cluster.hosts:
        cluster.does("throttle", host, rate)
    before = len(training.steps) + 1  # the first slow round may have begun on fast links
    wait(lambda: len(training.steps) >= before + rounds, START_S + 120 * rounds, "slow rounds")
    round_s = (training.steps[-1] - training.steps[before - 1]) / rounds
    false_deaths = deaths(training)
    time.sleep(HALF * round_s)  # the middle of the next payload: local steps are short
    bytes_per_s = traffic(training)
    victim = max(training.ranks())
    started, lines = time.monotonic(), len(training.output)
    if fault == "process":
        send(training.ranks()[victim], signal.SIGKILL)
    else:
        cluster.does("partition", cluster.hosts[victim])
    noticed_s = None
    try:
        wait(lambda: bool(deaths(training, lines)), NOTICE_S, "a line about the death")
        noticed_s = round(time.monotonic() - started, 1)
    except TimeoutError:
        pass
    return {
        "comm_type": comm_type, "fault": fault, "rate": rate, "rounds": rounds,
        "round_s": round(round_s, 1), "false_deaths": len(false_deaths),
        "traffic_bytes_per_s": round(bytes_per_s), "noticed_s": noticed_s,
        "line": (deaths(training, lines) or [""])[0],
    }  # fmt: skip


def deaths(training: Training, first: int = 0) -> list[str]:
    """Returns the lines of the output about lost processes, and restarts."""
    return [line for line in training.output[first:] if LOST.search(line)] + [
        "restart" for _ in training.restarts[:1] if first
    ]


def traffic(training: Training) -> float:
    """Returns the bytes per second that the host of the first rank receives."""
    pid, span_s = training.ranks()[0], 1.0

    def received() -> int:
        table = Path(f"/proc/{pid}/net/dev").read_text()
        return sum(
            int(line.split(":")[1].split()[0])
            for line in table.splitlines()
            if ":" in line and not line.strip().startswith("lo:")
        )

    before = received()
    time.sleep(span_s)
    return (received() - before) / span_s


def wait(is_done: Callable[[], bool], limit_s: float, label: str) -> None:
    """Waits until something is done; raises TimeoutError after the limit."""
    end = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"no {label} within {limit_s:g} s")
        time.sleep(POLL_S)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}")
