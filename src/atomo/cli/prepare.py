"""`atomo prepare`: downloads and verifies data sets."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from atomo.core.arguments import Parser, translate_spellings
from atomo.workloads.datasets.prepare import prepare

__all__ = ["main"]

DEFAULT = ("MNIST", "Cifar10", "Cifar100", "SVHN")
DESCRIPTION = """\
Downloads data sets and verifies them. Existing data sets are kept. If a data set is missing and
cannot be downloaded, the command prints the needed files and their folder, and
ends with exit code 2.

  atomo prepare
  atomo prepare --dataset MNIST --dataset Cifar10 --data-dir /nfs/data"""


def main(words: Sequence[str]) -> int:
    """Prepares the named data sets."""
    parser = Parser(
        prog="atomo prepare",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", action="append", nargs="+", metavar="X",
                        help=f"names of data sets (default {' '.join(DEFAULT)})")  # fmt: skip
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="X",
                        help="folder of the data sets (default data)")  # fmt: skip
    options = parser.parse_args(translate_spellings(words, ["--dataset", "--data-dir"]))
    names = [name for group in options.dataset or [DEFAULT] for name in group]
    prepare(names, options.data_dir, print_line)
    return 0


def print_line(line: str) -> None:
    """Prints one line without buffering, also to a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
