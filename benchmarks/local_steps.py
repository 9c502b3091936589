"""Seconds and bytes to a target with local steps, over links of several rates; the price in loss.

    python benchmarks/local_steps.py curves --data-dir data    # loss and accuracy by steps
    python benchmarks/local_steps.py times                     # seconds of steps over links
    python benchmarks/local_steps.py whole                     # real runs to the target
    python benchmarks/local_steps.py figures                   # tables and pictures of the records

Losses do not depend on links, and seconds of a step hardly on weights. So `curves` trains with each
method, four ranks over the loopback device, and `times` takes a few steps by each method, in turns,
on four virtual hosts. Seconds to a target are their product: steps to the target times the mean
seconds of a step, which are local steps and a share of an exchange. `whole` trains to the target
with and without a limit, evaluations apart, to compare real seconds with products.

Records are lines of JSON in benchmarks/records; runs that are there are not repeated. A link has
its rate in both directions, and 10 ms one way (delay.py). `times` and `whole` bring a cluster up,
and take it away again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from delay import DEVICE, delayed_address
from parts.local_steps.figures import read, write_figures
from parts.local_steps.methods import METHODS, can_run
from parts.local_steps.plans import (
    HOSTS,
    RATES,
    UNLIMITED,
    Run,
    curve_runs,
    timed_runs,
    timing_name,
    whole_runs,
)

ROOT: Final = Path(__file__).parent.parent
RECORDS: Final = ROOT / "benchmarks" / "records"
CLUSTER: Final = (sys.executable, str(ROOT / "tools" / "virtual_cluster.py"))
NAME: Final = "local-steps"
RANK: Final = str(ROOT / "benchmarks" / "local_steps_rank.py")


def main() -> None:
    """Reads the command line, and carries out one part."""
    options = parse()
    if options.part == "figures":
        write_figures(RECORDS, ROOT / "docs")
    elif options.part == "curves":
        plans = curve_runs(options.seeds)
        for world in sorted({run["world"] for run in plans}, reverse=True):
            runs = [run for run in plans if run["world"] == world and options.only in words(run)]
            train(options, RECORDS / "local_steps_curves.jsonl", runs, world)
    else:
        carry_out(options, UNLIMITED, "lo")
        with cluster():
            over_links(options)


def words(run: Run) -> str:
    """Returns the workload and the method of a run, for `--only`."""
    return f"{run['workload']} {run.get('method', '')}"


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("curves", "times", "whole", "figures"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--peers", type=Path, help="a folder with demo.py and ccloco.py")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rates", nargs="+", default=RATES, help="of links")
    parser.add_argument("--only", default="", help="text in the workload and the method of runs")
    parser.add_argument("--machine", type=int, default=1, help="a number for this machine: times "
                        "are compared with those of the same machine")  # fmt: skip
    parser.add_argument("--port", type=int, default=29531)
    return parser.parse_args()


def over_links(options: argparse.Namespace) -> None:
    """Carries out timed or whole runs at each rate of the links."""
    for rate in options.rates:
        for host in range(1, HOSTS + 1):
            virtual("throttle", "--name", NAME, f"h{host}", rate)
        carry_out(options, rate, DEVICE)


def carry_out(options: argparse.Namespace, link: str, interface: str) -> None:
    """Carries out the timed or the whole runs over a link."""
    if options.part == "times":
        time_steps(options, link, interface)
    else:
        train(options, RECORDS / "local_steps_whole.jsonl", whole_runs(link, interface), HOSTS)


def time_steps(options: argparse.Namespace, link: str, interface: str) -> None:
    """Times the methods over a link that have no record of it."""
    path = RECORDS / "local_steps_times.jsonl"
    done = {(r["workload"], r["link"], timing_name(r["method"])) for r in read(path)}
    for run in timed_runs(link, interface, options.peers):
        methods = [
            name
            for name in run["methods"]
            if (run["workload"], link, timing_name(name)) not in done
            and options.only in words({**run, "method": name})
        ]
        if methods:
            plan = {**run, "methods": methods, "machine": options.machine}
            train(options, path, [plan], HOSTS)


def train(options: argparse.Namespace, path: Path, runs: Sequence[Run], world: int) -> None:
    """Starts the ranks, which carry out the missing runs and append their records."""
    done = read(path)
    missing = [run for run in runs if not any(is_record(record, run) for record in done)]
    missing = [run for run in missing if run_is_possible(run, options.peers)]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        plan.write_text("".join(json.dumps(run) + "\n" for run in missing))
        on_hosts = missing[0].get("interface") == DEVICE
        ranks = [start(options, plan, path, rank, world, on_hosts) for rank in range(world)]
        codes = [process.wait() for process in ranks]
    if any(codes):
        raise SystemExit(f"exit codes of the ranks: {codes}")


def run_is_possible(run: Run, peers: Path | None) -> bool:
    """True if the file or the package of its method is here."""
    name = run.get("method", "")
    return name not in METHODS or can_run(METHODS[name], peers)


def is_record(record: Mapping[str, Any], run: Run) -> bool:
    """True if a record is of a run."""
    return all(record.get(key) == value for key, value in run.items())


def start(
    options: argparse.Namespace, plan: Path, out: Path, rank: int, world: int, on_hosts: bool
) -> subprocess.Popen[bytes]:
    """Starts one rank, here or on a virtual host."""
    master = delayed_address("10.77.0.1") if on_hosts else "127.0.0.1"
    line = [sys.executable, RANK, "--rank", str(rank), "--world", str(world), "--plan", str(plan)]
    line += ["--out", str(out), "--master", master, "--port", str(options.port)]
    line += ["--interface", DEVICE if on_hosts else "lo", "--data-dir", str(options.data_dir)]
    line += ["--peers", str(options.peers)] if options.peers else []
    if on_hosts:
        line = [*CLUSTER, "exec", "--name", NAME, f"h{rank + 1}", *line]
    return subprocess.Popen(line)


def virtual(*words: str) -> None:
    """Runs a command of the virtual cluster."""
    subprocess.run([*CLUSTER, *words], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def cluster() -> Iterator[None]:
    """Brings hosts up with links that delay packets, and takes them away after the block."""
    virtual("up", "--name", NAME, "--hosts", str(HOSTS), "--rate", "1gbit")
    script, delays = str(ROOT / "benchmarks" / "delay.py"), []
    try:
        for host in range(1, HOSTS + 1):
            words = [*CLUSTER, "exec", "--name", NAME, f"h{host}", sys.executable, script]
            line = [*words, "--address", f"10.77.0.{host}"]
            process = subprocess.Popen(line, stdout=subprocess.PIPE)
            delays.append(process)
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit(f"delay.py failed on h{host}")
        yield
    finally:
        for process in delays:
            process.terminate()
        deadline = time.monotonic() + 10
        for process in delays:
            process.wait(max(0.1, deadline - time.monotonic()))
        virtual("down", "--name", NAME)


if __name__ == "__main__":
    main()
