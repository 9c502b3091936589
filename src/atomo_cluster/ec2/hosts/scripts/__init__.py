"""Scripts that run on hosts: fuse, spot watch, jobs, measurements."""

from pathlib import Path
from typing import Final

__all__ = ["SCRIPTS"]

SCRIPTS: Final = Path(__file__).parent
