"""Scripts that run on hosts: fuse, spot watch, jobs, measurements."""

from pathlib import Path
from typing import Final

__all__ = ["LIBRARY", "SCRIPTS", "write_lines"]

SCRIPTS: Final = Path(__file__).parent
LIBRARY: Final = "/usr/local/lib/atomo"  # the folder of the scripts on a host
END: Final = "ATOMO_END_OF_FILE"


def write_lines(path: str, content: str) -> str:
    """Returns the shell lines that write a file below `$ATOMO_ROOT`."""
    folder = path.rpartition("/")[0]
    return f'mkdir -p "$ATOMO_ROOT{folder}"\ncat >"$ATOMO_ROOT{path}" <<\'{END}\'\n{content}{END}'
