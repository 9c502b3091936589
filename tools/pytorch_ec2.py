#!/usr/bin/env python3
"""Clusters on EC2: `python tools/pytorch_ec2.py --help`. The code is in `atomo_cluster.ec2`.

Needs boto3, PyYAML and rich, in this Python or in the environment of this checkout.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = Path(os.environ.get("ATOMO_VENV", ROOT / ".venv")) / "bin" / "python"
NEEDED = ("boto3", "yaml", "rich")


def main() -> int:
    """Runs the command with a Python that has the needed packages."""
    missing = [name for name in NEEDED if not find_spec(name)]
    if missing and OURS.exists() and Path(sys.executable).absolute() != OURS.absolute():
        os.execv(OURS, [str(OURS), __file__, *sys.argv[1:]])
    if missing:
        brings = f"{sys.executable} -m pip install boto3 pyyaml rich"
        told = f"{', '.join(missing)}: missing; `{brings}` brings them"
        sys.stderr.write(f"pytorch_ec2.py: {told}\n")
        return 2
    sys.path.insert(0, str(ROOT / "src"))  # the commands of this checkout, installed or not
    from atomo_cluster.ec2.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
