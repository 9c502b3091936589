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
        ("exchange", print_exchange, ["method", "rate"]),
        ("grouping", print_grouping, ["code", "grouping"]),
    ):
        rows = latest(records, part, *keys)
        if rows:
            printed(rows)


def latest(records: Records, part: str, *keys: str) -> list[dict[str, Any]]:
    """Returns the last record of each combination of these keys."""
    chosen = {tuple(r[key] for key in keys): r for r in records if r["part"] == part}
    return [*chosen.values()]


def print_encode(records: Records) -> None:
    """Prints the milliseconds of compression, relative to the first method."""
    print("| compression of one gradient | ms, median | least | time saved |\n|---|---|---|---|")
    for record in records:
        ms, first = statistics.median(record["ms"]), statistics.median(records[0]["ms"])
        print(
            f"| `{record['method']}` | {ms:.1f} | {min(record['ms']):.1f} | {1 - ms / first:.0%} |"
        )


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
    """Prints the milliseconds of a step by grouping."""
    print("\n| codec | layer-wise, ms | merged, ms | speedup |\n|---|---|---|---|")
    for code in dict.fromkeys(record["code"] for record in records):
        ms = {r["grouping"]: r["ms"] for r in records if r["code"] == code}
        if {"layer", "mergecomp"} <= ms.keys():
            ratio = ms["layer"] / ms["mergecomp"]
            print(f"| `{code}` | {ms['layer']:.1f} | {ms['mergecomp']:.1f} | {ratio:.2f} |")
