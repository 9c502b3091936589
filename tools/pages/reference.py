"""Writes the pages of the reference from the code.

python tools/pages/reference.py            writes docs/reference/
python tools/pages/reference.py --check    names the pages that differ from the code
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from reference_api import api_page
from reference_commands import cluster_page, commands_page
from reference_tables import codecs_page, exit_codes_page, names_page

__all__ = ["FOLDER", "PAGES", "differing"]

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
NOTE: Final = "<!-- made from the code: python tools/pages/reference.py -->\n"
PAGES: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "api": api_page,
        "codecs": codecs_page,
        "commands": commands_page,
        "ec2": cluster_page,
        "exit-codes": exit_codes_page,
        "names": names_page,
    }
)


def differing() -> dict[Path, str]:
    """Returns the pages that are not what the code says, with what it says."""
    texts = {FOLDER / f"{name}.md": NOTE + page().rstrip() + "\n" for name, page in PAGES.items()}
    return {
        path: text for path, text in texts.items()
        if not path.exists() or path.read_text() != text
    }  # fmt: skip


def main() -> int:
    """Writes the pages; with --check, names those that differ and returns 1."""
    pages = differing()
    for path, text in pages.items():
        if "--check" in sys.argv:
            print(f"{path.relative_to(FOLDER.parents[1])} differs from the code")
        else:
            path.write_text(text)
    return int("--check" in sys.argv and bool(pages))


if __name__ == "__main__":
    sys.exit(main())
