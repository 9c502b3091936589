#!/usr/bin/env python3
"""A cluster on one machine: `python3 tools/virtual_cluster.py --help`.

Needs Python 3.10 or newer and nothing that is not in it.
"""

import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 - before anything that an older one cannot parse
    sys.exit("virtual_cluster.py: Python 3.10 or newer is needed")

from vcluster.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve()))
