"""Runs the commands with output on a page, and updates the page.

    python benchmarks/readme.py              updates the sample of docs/guides/first-run.md
    python benchmarks/readme.py --check      prints the differences only

A sample is a block of code after a comment with its command, `<!-- output of: ... -->`. Three dots
replace the lines of most steps, and the remaining time is removed from the others.
"""

import argparse
import difflib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "guides" / "first-run.md"
SAMPLE: Final = re.compile(r"(<!-- output of: (.+?) -->\n```\n)(.*?)(```\n)", re.DOTALL)
STEP: Final = re.compile(r"step \d+/\d+ ")
ETA: Final = re.compile(r" ETA [\d:]+$")
FIRST: Final = 2  # steps to show
TRIES: Final = 3  # runs; the fastest is shown, since other load slows the others


def main() -> int:
    """Updates the page, or prints the differences; returns 1 for differences with --check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true", help="print the differences only")
    options = parser.parse_args()
    before = options.text.read_text()
    after = SAMPLE.sub(lambda match: match[1] + sample(match[2]) + match[4], before)
    sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True)))
    if not options.check:
        options.text.write_text(after)
    return int(options.check and before != after)


def sample(command: str) -> str:
    """Runs a command several times; returns the shortened output of the fastest run."""
    outputs = [printed(command) for _ in range(TRIES)]
    return "".join(shortened(min(outputs, key=seconds)))


def printed(command: str) -> str:
    """Runs a script of the checkout in an empty folder; returns its output."""
    words = shlex.split(command)
    words[1] = str(ROOT / words[1])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.replace(f"{folder}/", "")


def seconds(output: str) -> int:
    """Returns the training time, seconds, from the end of an output; 0 without one."""
    match = re.search(r"training time +│ (\d+):(\d+)", output)
    return 60 * int(match[1]) + int(match[2]) if match else 0


def shortened(output: str) -> Iterator[str]:
    """Yields the lines of a run, with only the first two steps and the last."""
    lines = [ETA.sub("", line).rstrip() + "\n" for line in output.splitlines()]
    steps = [place for place, line in enumerate(lines) if STEP.match(line)]
    left_out = set(steps[FIRST:-1])
    for out, group in groupby(range(len(lines)), key=left_out.__contains__):
        yield from ["...\n"] if out else [lines[place] for place in group]


if __name__ == "__main__":
    sys.exit(main())
