"""Tables that fit into 80 columns, without borders, which would take some of them."""

from collections.abc import Sequence
from typing import Any

__all__ = ["table"]


def table(title: str, columns: Sequence[str], right: Sequence[str] = ()) -> Any:
    """Returns an empty rich table; `right` names the columns of numbers.

    A cell may have several lines.
    """
    from rich.table import Table  # commands that show none start without it

    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    return made
