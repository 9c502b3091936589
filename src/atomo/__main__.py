"""`python -m atomo`."""

import sys

from atomo.cli import main

if __name__ == "__main__":
    sys.exit(main())
