"""Tables and lines of commands on a terminal, without control sequences."""

import sys
from collections.abc import Iterator
from typing import Final, final

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
)
from rich.control import Control
from rich.segment import Segment

from atomo.core.visible import visible

__all__ = ["report_console"]

WIDE: Final = 140  # characters of a table in a file or a pipe, which has no width of its own


def report_console(width: int | None = WIDE) -> Console:
    """Returns a console on standard output. Its tables may hold text of other ranks, hosts and
    files: cells are no markup, and control characters are shown as escapes.

    Args:
        width: of tables that go to a file or a pipe; None: rich's choice.
    """
    console = Console(
        width=None if sys.stdout.isatty() else width, markup=False, emoji=False, highlight=False
    )
    console.push_render_hook(Escapes())
    return console


@final
class Escapes(RenderHook):
    """Shows the text of all that is printed without control characters."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [
            renderable if isinstance(renderable, Control) else Escaped(renderable)
            for renderable in renderables
        ]


@final
class Escaped:
    """A table or text that shows control characters as escapes."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._shown, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)
