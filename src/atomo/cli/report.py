"""`atomo report`: writes the page of a run, or of several, or serves it while the run trains."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from atomo.core.arguments import Parser, number_converter
from atomo.core.visible import visible
from atomo.errors import ConfigError
from atomo.report.comparison_page import comparison_html, runs_of_sweep
from atomo.report.pages import write_page
from atomo.report.run_page import REPORT_FILE, run_html, write_report
from atomo.report.server import page_server

__all__ = ["main"]

REFRESH_S: Final = 10  # between two pages of a browser that follows a run
DESCRIPTION: Final = """\
Writes report.html into the folder of a run: a page that opens in any browser without network or
scripts. The run may be old, unfinished or still running; nothing else in its folder is changed.
Several runs, or the folder of a sweep, are compared on one page.

  atomo report runs/x
  atomo report runs/a runs/b --target 98 --out comparison.html
  atomo report runs/sweep-lenet-digits
  atomo report --follow runs/x"""


def main(words: Sequence[str]) -> int:
    """Writes the page and prints its path, or serves it until Ctrl-C."""
    options = build_parser().parse_args(words)
    folders: list[Path] = options.runs
    if options.follow:
        return follow(folders, options.port)
    trials = runs_of_sweep(folders[0]) if len(folders) == 1 and folders[0].is_dir() else []
    if len(folders) > 1 or len(trials) > 1:
        path = write_comparison(folders, trials, options)
    elif options.out or options.target is not None:
        raise ConfigError(
            "--out and --target are for several runs; a run has its page in its folder"
        )
    else:
        path = write_report(folders[0])
    sys.stdout.write(visible(f"{path}\n"))
    return 0


def build_parser() -> Parser:
    """Returns the parser of the command."""
    parser = Parser(
        prog="atomo report",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--target", type=number_converter(float, "a number"), metavar="X",
                        help="of several runs: the test result to reach, as 98.5 for 98.5 %%; "
                        "default: one that all reach")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="of several runs: the page (default report.html in the folder of all)"
                        )  # fmt: skip
    parser.add_argument("--follow", action="store_true",
                        help="serve the page of a run on this machine until Ctrl-C")  # fmt: skip
    whole = number_converter(int, "a whole number")
    parser.add_argument("--port", type=whole, default=0, metavar="X",
                        help="with --follow: port (default 0: a free one)")  # fmt: skip
    return parser


def write_comparison(
    folders: Sequence[Path], trials: Sequence[Path], options: argparse.Namespace
) -> Path:
    """Writes the page of several runs, and returns its path."""
    runs = trials or folders
    html = comparison_html(runs, options.target)
    if options.out:
        place: Path = options.out
    else:
        place = (folders[0] if trials else common_folder(folders)) / REPORT_FILE
    return write_page(place.parent, place.name, html)


def common_folder(folders: Sequence[Path]) -> Path:
    """Returns the folder that all runs lie in."""
    folder = Path(os.path.commonpath([folder.absolute().parent for folder in folders]))
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def follow(folders: Sequence[Path], port: int) -> int:
    """Serves the page of a run until Ctrl-C."""
    if len(folders) != 1:
        raise ConfigError(f"--follow takes one run, not {len(folders)}")
    folder = folders[0]
    run_html(folder)  # a missing folder is an error now, and not of each request
    with page_server(lambda: run_html(folder, REFRESH_S), port) as server:
        sys.stdout.write(f"http://127.0.0.1:{server.server_port}/ shows the run; Ctrl-C ends\n")
        sys.stdout.flush()
        server.serve_forever()
    return 0
