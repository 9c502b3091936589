"""`python -m atomo_cluster.ec2`: the command where Atomo is installed without its checkout."""

import sys

from atomo_cluster.ec2.cli import main

if __name__ == "__main__":
    sys.exit(main())
