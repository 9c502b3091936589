"""Tables on a terminal, with control characters shown as escapes."""

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

from atomo_cluster.visible import visible

__all__ = ["console_on"]

WIDE: Final = 160  # characters of a table that no terminal shows: it must not lose columns


def console_on(*, errors: bool) -> Console:
    """Returns a console on stdout, or on stderr.

    Tables may hold text from hosts and from AWS: cells are no markup, and control characters are
    shown as escapes.
    """
    out = sys.stderr if errors else sys.stdout
    console = Console(
        file=out, width=None if out.isatty() else WIDE, markup=False, emoji=False, highlight=False
    )
    console.push_render_hook(Escapes())
    return console


@final
class Escapes(RenderHook):
    """A render hook that escapes control characters in all output."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [
            renderable if isinstance(renderable, Control) else Escaped(renderable)
            for renderable in renderables
        ]


@final
class Escaped:
    """A renderable with control characters shown as escapes."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._shown, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)
