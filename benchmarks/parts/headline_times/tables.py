"""Tables of the records of headline_times.py."""

import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["print_tables"]

Records = Sequence[dict[str, Any]]


def print_tables(records: Records) -> None:
    """Prints a table for each part, of the last record of each row."""
    for part, printed, keys in (
        ("encode", print_encode, ["method"]),
        ("exchange", print_exchanges, ["gradient", "method", "rate"]),
        ("grouping", print_grouping, ["code", "grouping"]),
        ("simulate", print_simulated, ["code", "exchange", "rate", "workers"]),
    ):
        rows = latest(records, part, *keys)
        if rows:
            printed(rows)


def latest(records: Records, part: str, *keys: str) -> list[dict[str, Any]]:
    """Returns the last record of each combination of these keys."""
    chosen = {tuple(r[key] for key in keys): r for r in records if r["part"] == part}
    return [*chosen.values()]


def print_encode(records: Records) -> None:
    """Prints the milliseconds of compression, and the bytes."""
    print("| compression of one gradient | ms, median | least | kB |\n|---|---|---|---|")
    for record in records:
        ms, kilobytes = statistics.median(record["ms"]), record["bytes"] / 1e3
        print(f"| `{record['method']}` | {ms:.1f} | {min(record['ms']):.1f} | {kilobytes:.0f} |")


def print_exchanges(records: Records) -> None:
    """Prints a table of exchanges for each gradient."""
    for gradient in dict.fromkeys(record["gradient"] for record in records):
        print(f"\nGradient of {gradient}:")
        print_exchange([record for record in records if record["gradient"] == gradient])


def print_exchange(records: Records) -> None:
    """Prints the seconds of an exchange at each rate."""
    rates = [*dict.fromkeys(record["rate"] for record in records)]
    print("\n| method |" + "".join(f" {rate}: s | CPU s |" for rate in rates))
    print("|---|" + "---|---|" * len(rates))
    for method in dict.fromkeys(record["method"] for record in records):
        rows = {r["rate"]: r for r in records if r["method"] == method}
        cells = [
            f" {statistics.median(rows[rate]['s']):.3f} | {rows[rate]['cpu_s']:.3f} |"
            if rate in rows
            else " | |"
            for rate in rates
        ]
        print(f"| `{method}` |" + "".join(cells))


def print_grouping(records: Records) -> None:
    """Prints the milliseconds of a step by grouping, and scaling factors.

    A scaling factor is the throughput of two ranks by that of two times one rank alone.
    """
    alone = next((r["ms"] for r in records if r["grouping"] == "alone"), None)
    if alone is not None:
        print(f"\nOne rank alone: {alone:.1f} ms.")
    print("\n| codec | layer-wise, ms | scaling | merged, ms | scaling | speedup |")
    print("|---|---|---|---|---|---|")
    for code in dict.fromkeys(record["code"] for record in records):
        ms = {r["grouping"]: r["ms"] for r in records if r["code"] == code}
        if {"layer", "mergecomp"} <= ms.keys():
            cells = [
                f"{ms[way]:.1f} | {alone / ms[way]:.2f}" if alone else f"{ms[way]:.1f} |"
                for way in ("layer", "mergecomp")
            ]
            print(f"| `{code}` | {' | '.join(cells)} | {ms['layer'] / ms['mergecomp']:.2f} |")


def print_simulated(records: Records) -> None:
    """Prints predicted seconds of a step, without passes and with them."""
    columns = [*dict.fromkeys((r["rate"], r["workers"]) for r in records)]
    for name in dict.fromkeys(record["exchange"] for record in records):
        print(f"\n{name}, s without passes / with passes:\n")
        print("| code | MB |" + "".join(f" {rate}, {n} workers |" for rate, n in columns))
        print("|---|---|" + "---|" * len(columns))
        chosen = [record for record in records if record["exchange"] == name]
        for code in dict.fromkeys(record["code"] for record in chosen):
            rows = {(r["rate"], r["workers"]): r for r in chosen if r["code"] == code}
            cells = [f" {rows[c]['alone_s']:.2f} / {rows[c]['step_s']:.2f} |" for c in columns]
            megabytes = rows[columns[0]]["sent_bytes"] / 1e6
            print(f"| `{code}` | {megabytes:.2f} |" + "".join(cells))
