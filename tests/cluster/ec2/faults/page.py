"""The table of docs/cluster-ec2.md: calls, and the exit codes of commands in which the calls
failed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["BEGIN", "END", "PAGE", "has", "in_page", "page_of"]

PAGE: Final = Path(__file__).parents[4] / "docs" / "cluster-ec2.md"
BEGIN, END = "<!-- calls and outcomes -->\n", "<!-- end of calls and outcomes -->\n"
HEADINGS: Final = {
    0: "goes on without (0)",
    10: "ends: AWS refused (10)",
    11: "ends: a host failed (11)",
    12: "ends: a check failed (12)",
    14: "ends, and names what is left (14)",
}
ALL: Final = "all that ask"
MANY: Final = 4
Seen = tuple[str, str, int]  # a command, a call, an exit code


def page_of(found: Sequence[Seen]) -> str:
    """Returns the table, with a sentence before it."""
    shown = [code for code in HEADINGS if any(code == seen for *_, seen in found)]
    if unknown := {code for *_, code in found} - set(shown):
        raise ValueError(f"no heading for the exit codes {sorted(unknown)}")
    commands = dict.fromkeys(command for command, *_ in found)
    lines = ["| call | " + " | ".join(HEADINGS[code] for code in shown) + " |"]
    lines += ["| --- |" + " --- |" * len(shown)]
    for call in sorted({call for _, call, _ in found}):
        asking = [one for one in commands if any(seen[:2] == (one, call) for seen in found)]
        cells = [cell([one for one in asking if (one, call, code) in found], asking)
                 for code in shown]  # fmt: skip
        lines.append(f"| {call} | " + " | ".join(cells) + " |")
    verbs = {one.split()[0] for one in commands}
    told = f"{len(found)} faults in {len(commands)} uses of {len(verbs)} commands. After none of "
    told += "them anything ran that the command had not named, and nowhere could the hosts cost "
    told += "more than `max_usd`."
    return textwrap.fill(told, 118) + "\n\n" + "\n".join(lines) + "\n"


def cell(those: Sequence[str], asking: Sequence[str]) -> str:
    """Returns a cell that names some of the commands that make a call, or the exceptions if that is
    shorter.
    """
    others = [one for one in asking if one not in those]
    if not others and len(those) > 1:
        return ALL
    if len(those) >= MANY and len(others) < len(those) / 2:
        return f"{ALL} but {named(others)}"
    return named(those)


def named(commands: Iterable[str]) -> str:
    """Commands in a list."""
    return ", ".join(f"`{one}`" for one in commands)


def in_page() -> dict[str, dict[int, str]]:
    """Returns the cells of the page's table, by call and exit code."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in text.splitlines() if line.startswith("| ")]  # fmt: skip
    codes = [int(cell.rpartition("(")[2].rstrip(")")) for cell in rows[0][1:]]
    return {call: dict(zip(codes, cells, strict=True)) for call, *cells in rows[2:]}


def has(text: str, command: str) -> bool:
    """True if a cell is of a command."""
    listed = command in re.findall("`(.*?)`", text)
    return not listed if text.startswith(ALL) else listed
