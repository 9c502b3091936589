#!/usr/bin/env python3
"""A cluster on one machine: `python3 tools/virtual_cluster.py --help`.

Needs Python 3.10 or newer, and only its standard library.
"""

import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 - before code that an older one cannot parse
    sys.exit("virtual_cluster.py: Python 3.10 or newer is needed")

SCRIPT = Path(__file__).resolve()
sys.path.insert(0, str(SCRIPT.parent.parent / "src"))  # this checkout's, installed or not

from atomo_cluster.virtual.cli import main  # noqa: E402 - not found without the line above

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], SCRIPT))
