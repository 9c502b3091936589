#!/usr/bin/env python3
"""Clusters on EC2: `python tools/pytorch_ec2.py --help`. The work is done in `atomo.ec2`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = Path(os.environ.get("ATOMO_VENV", ROOT / ".venv")) / "bin" / "python"


def main() -> int:
    """Runs the command, with the Python that has the package."""
    try:
        from atomo.ec2.cli import main as command
    except ModuleNotFoundError as error:
        if error.name != "atomo":
            raise
        if OURS.exists() and Path(sys.executable).absolute() != OURS.absolute():
            os.execv(OURS, [str(OURS), __file__, *sys.argv[1:]])
        sys.stderr.write(f'pytorch_ec2.py: Atomo is not installed; pip install "{ROOT}[ec2]"\n')
        return 2
    return command()


if __name__ == "__main__":
    sys.exit(main())
