"""Runs the commands with output on the pages, and updates the pages.

    python benchmarks/readme.py              README.md, rewritten where it has a sample
    python benchmarks/readme.py --check      shows the differences, and writes nothing

A sample is a block of code behind a comment that names its command, `<!-- output of: ... -->`.
Three dots stand for the lines of most steps, and the remaining time is left out of the others.
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
SAMPLE: Final = re.compile(r"(<!-- output of: (.+?) -->\n```\n)(.*?)(```\n)", re.DOTALL)
STEP: Final = re.compile(r"step \d+/\d+ ")
ETA: Final = re.compile(r" ETA [\d:]+$")
FIRST: Final = 2  # steps
TRIES: Final = 3  # runs; the fastest is shown, since the others shared the machine


def main() -> int:
    """Rewrites the pages, or reports the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", type=Path, default=ROOT / "README.md")
    parser.add_argument("--check", action="store_true", help="print the differences alone")
    options = parser.parse_args()
    before = options.text.read_text()
    after = SAMPLE.sub(lambda found: found[1] + sample(found[2]) + found[4], before)
    sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True)))
    if not options.check:
        options.text.write_text(after)
    return int(options.check and before != after)


def sample(command: str) -> str:
    """Runs a command several times and returns the output of the fastest run, without most of its
    steps.
    """
    outputs = [printed(command) for _ in range(TRIES)]
    return "".join(shortened(min(outputs, key=seconds)))


def printed(command: str) -> str:
    """Returns the output of a script of the checkout, in a folder where nothing is yet."""
    words = shlex.split(command)
    words[1] = str(ROOT / words[1])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.replace(f"{folder}/", "")


def seconds(output: str) -> int:
    """Returns the training time that a run reports at its end."""
    found = re.search(r"training time +│ (\d+):(\d+)", output)
    return 60 * int(found[1]) + int(found[2]) if found else 0


def shortened(output: str) -> Iterator[str]:
    """Yields the lines of a run, but of its steps only the first two and the last."""
    lines = [ETA.sub("", line).rstrip() + "\n" for line in output.splitlines()]
    steps = [place for place, line in enumerate(lines) if STEP.match(line)]
    left_out = set(steps[FIRST:-1])
    for out, group in groupby(range(len(lines)), key=left_out.__contains__):
        yield from ["...\n"] if out else [lines[place] for place in group]


if __name__ == "__main__":
    sys.exit(main())
