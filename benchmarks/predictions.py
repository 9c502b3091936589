"""Error of the cost model: predicted and measured steps of many cells.

    python3 tools/virtual_cluster.py up --hosts 3
    python benchmarks/predictions.py --quick --out runs/predictions

A cell is a network, a rate of the links, a codec and a communicator. For each rate, a job of three
ranks on three hosts probes itself like `atomo explain --probe`, and then takes a few real steps of
each cell. `--out` stores the results, so that the same command resumes an interrupted run;
`--table` prints the results.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from atomo.codecs import CODECS
from atomo.config.comm_types import PARAMETER_SERVER, settings_of_stored
from atomo.config.settings import Settings
from atomo.core.plotting import pyplot_for
from atomo.launch.jobs.mpirun import python_command
from time_to_accuracy import CLUSTER, hosts_of, on_host

RANK: Final = str(Path(__file__).with_name("predictions_rank.py"))
LINKS: Final = {
    "10mbit": "10 Mbit/s",
    "100mbit": "100 Mbit/s",
    "1gbit": "1 Gbit/s",
    "none": "no limit",
}
RATES: Final = (*LINKS,)
UNLIMITED: Final = "100gbit"
NETWORKS: Final = ("LeNet", "ResNet20", "ResNet18")
QUICK: Final = ("sgd", "bf16", "svd(rank=3)", "efsignsgd", "topk(ratio=0.01)", "randk")


def main() -> None:
    """Runs the jobs, and prints the table."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    hosts = hosts_of(options.hosts)[:3]
    for rate in () if options.table else options.rates:
        for number in range(1, len(hosts) + 1):
            limit = UNLIMITED if rate == "none" else rate
            subprocess.run([sys.executable, CLUSTER, "throttle", f"h{number}", limit], check=True)
        measure(options, hosts, rate)
    lines = (options.out / "cells.jsonl").read_text().splitlines()
    rows = [settings_of_stored(json.loads(line)) for line in lines]
    print(table(rows))
    (options.out / "summary.json").write_text(json.dumps(summary(rows), indent=1) + "\n")
    if options.png:
        draw(str(options.png), rows)


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=Path, default=Path("clusters/virtual/hosts_address"))
    parser.add_argument("--out", type=Path, default=Path("runs/predictions"))
    parser.add_argument("--quick", action="store_true", help="few codecs, and only short steps")
    parser.add_argument("--rates", nargs="+", default=RATES, choices=RATES)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--codes", nargs="+")
    parser.add_argument(
        "--longest",
        type=float,
        help="maximum predicted seconds of a step; longer steps are left out",
    )
    parser.add_argument(
        "--table", action="store_true", help="print the stored results without measuring"
    )
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    options.codes = options.codes or (QUICK if options.quick else [*CODECS])
    options.longest = options.longest or (2.0 if options.quick else 120.0)
    options.budget, options.times = (1.0, 3) if options.quick else (3.0, 8)
    return options


def measure(options: argparse.Namespace, hosts: list[str], rate: str) -> None:
    """Runs one job over links of one rate."""
    file = options.out / "hosts"
    file.write_text("".join(f"{host} slots=1\n" for host in hosts))
    _, *line = python_command(Settings(n=len(hosts), hostfile=str(file), comm_type="Allgather"))
    words = ["--out", str(options.out.resolve()), "--rate", rate, "--networks", *options.networks]
    words += ["--codes", *options.codes, "--longest", str(options.longest)]
    words += ["--budget", str(options.budget), "--times", str(options.times)]
    program = [str(Path(sys.executable).with_name("mpirun")), *line, RANK, *words]
    exec_ = on_host(1)[:-1]
    subprocess.run([*exec_, *program], check=True)


def errors(rows: list[dict[str, Any]]) -> list[float]:
    """Computes the error of each prediction, relative to the measured time."""
    return [abs(row["predicted_s"] / row["measured_s"] - 1) for row in rows]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the statistics of the errors of cells."""
    ordered = sorted(errors(rows))
    return {
        "cells": len(rows),
        "median": statistics.median(ordered),
        "p90": ordered[math.ceil(0.9 * (len(ordered) - 1))],
        "worst": ordered[-1],
        "within_10": sum(error <= 0.10 for error in ordered) / len(ordered),
        "within_25": sum(error <= 0.25 for error in ordered) / len(ordered),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a row for each cell, and the errors of groups of cells."""
    lines = ["| network | link | --code | --comm-type | predicted, ms | measured, ms | error |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        cells = row["network"], row["rate"], f"`{row['code']}`", row["comm_type"]
        times = f"{1e3 * row['predicted_s']:.1f} | {1e3 * row['measured_s']:.1f}"
        lines.append(
            f"| {' | '.join(cells)} | {times} | {row['predicted_s'] / row['measured_s'] - 1:+.0%} |"
        )
    lines += ["", "| cells | number | median | 90 % below | worst |", "|---|---|---|---|---|"]
    lines.append(line("all", rows))
    for key in ("network", "rate", "comm_type", "code"):
        for value in dict.fromkeys(row[key] for row in rows):
            lines.append(line(value, [row for row in rows if row[key] == value]))
    return "\n".join(lines)


def line(name: str, rows: list[dict[str, Any]]) -> str:
    """Returns the row of a group of cells."""
    figures = summary(rows)
    shares = " | ".join(f"{figures[key]:.1%}" for key in ("median", "p90", "worst"))
    return f"| {name} | {len(rows)} | {shares} |"


def draw(path: str, rows: list[dict[str, Any]]) -> None:
    """Draws predicted over measured times, one point for each cell."""
    pyplot = pyplot_for(path)
    figure, axes = pyplot.subplots(figsize=(7, 7))
    for rate in dict.fromkeys(row["rate"] for row in rows):
        for comm_type, marker in ((PARAMETER_SERVER, "o"), ("Allgather", "s"), ("Allreduce", "^")):
            points = [r for r in rows if (r["rate"], r["comm_type"]) == (rate, comm_type)]
            axes.scatter(
                [1e3 * row["measured_s"] for row in points],
                [1e3 * row["predicted_s"] for row in points],
                marker=marker,
                s=18,
                color=f"C{RATES.index(rate)}",
                label=f"{LINKS[rate]}, {comm_type}",
            )
    ends = [min(1e3 * r["measured_s"] for r in rows), max(1e3 * r["measured_s"] for r in rows)]
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    for share in (0.75, 1.25):
        axes.plot(ends, [share * e for e in ends], color="grey", linewidth=0.5, linestyle="--")
    axes.set(
        xscale="log", yscale="log", xlabel="measured, ms a step", ylabel="predicted, ms a step"
    )
    axes.set_title("Predicted and measured steps; dashed: 25 % off")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
