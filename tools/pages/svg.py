"""A small writer of drawings: boxes, bars, arrows and words, in colours for light and dark."""

from html import escape
from typing import Final

__all__ = ["WIDTH", "Drawing"]

WIDTH: Final = 680
LEAST: Final = 13
"""The smallest text, in pixels."""
STYLE: Final = """
text { font-family: system-ui, "DejaVu Sans", Arial, sans-serif; fill: var(--ink); }
svg { --ink: #1d2530; --paper: #ffffff; --line: #5b6675; --quiet: #eef1f5;
  --compute: #cfe3fb; --code: #fde3b5; --link: #d5efd6; --wait: #eceef1; --fault: #f8cfcf; }
@media (prefers-color-scheme: dark) { svg { --ink: #e8ecf1; --paper: #171b21; --line: #9aa6b5;
  --quiet: #232a33; --compute: #1f4a78; --code: #6e4d0c; --link: #22572a; --wait: #2c333c;
  --fault: #7a2626; } }
.paper { fill: var(--paper); } .line { stroke: var(--line); stroke-width: 1.5; fill: none; }
.head { fill: var(--line); } .dash { stroke-dasharray: 5 4; }
.quiet { fill: var(--quiet); } .compute { fill: var(--compute); } .code { fill: var(--code); }
.link { fill: var(--link); } .wait { fill: var(--wait); } .fault { fill: var(--fault); }
rect.edge { stroke: var(--line); stroke-width: 1; }
"""


class Drawing:
    """A drawing with a title and a description for those who do not see it."""

    def __init__(self, height: int, title: str, description: str) -> None:
        self.height = height
        self.title = title
        self.description = description
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, words: str, *, size: int = 14, anchor: str = "middle",
        bold: bool = False,
    ) -> None:  # fmt: skip
        """Writes one line of text; `y` is its base line."""
        if size < LEAST:
            raise ValueError(f"text of {size} px is too small; at least {LEAST}")
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{escape(words)}</text>"
        )

    def note(self, y: float, words: str) -> None:
        """Writes a line of small text at the left edge."""
        self.text(14, y, words, size=LEAST, anchor="start")

    def box(self, x: float, y: float, w: float, h: float, *lines: str, kind: str = "quiet") -> None:
        """Draws a box; its first line is bold."""
        self.parts.append(
            f'<rect class="edge {kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5"/>'
        )
        top = y + h / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + 18 * number, line, size=14 if number == 0 else 13,
                      bold=number == 0)  # fmt: skip

    def bar(self, x: float, y: float, w: float, words: str, kind: str, h: float = 24) -> None:
        """Draws a span of time."""
        self.parts.append(
            f'<rect class="edge {kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="3"/>'
        )
        if words:
            self.text(x + w / 2, y + h / 2 + 5, words, size=13)

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        """Draws a line."""
        style = "line dash" if dashed else "line"
        self.parts.append(f'<path class="{style}" d="M{x1:g} {y1:g} L{x2:g} {y2:g}"/>')

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Draws an arrow along the points."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        style = "line dash" if dashed else "line"
        self.parts.append(f'<path class="{style}" marker-end="url(#head)" d="M{path}"/>')

    def svg(self) -> str:
        """Returns the drawing as a file."""
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 Z"/>'
            "</marker></defs>"
        )
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
                'aria-labelledby="title description">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="description">{escape(self.description)}</desc>',
                f"<style>{STYLE}</style>",
                head,
                f'<rect class="paper" width="{WIDTH}" height="{self.height}" rx="8"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )
