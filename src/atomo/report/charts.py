"""Charts as inline SVG: lines, points and bars with title, axes, units and alternative text.

Matplotlib would take 0.4 s of processor time to import, a quarter of the time that a report may
take, and is an optional dependency; its colours are fixed when a picture is drawn, and these follow
the style of the page, so that one picture serves light, dark and print.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import xxhash
from jaxtyping import Float64
from markupsafe import Markup, escape

from atomo.report.scales import AxisScale, ChartAxis, Values, axis_scale

__all__ = [
    "STYLES",
    "BarRow",
    "Chart",
    "Series",
    "bar_chart",
    "line_chart",
    "style_classes",
    "thinned",
]

WIDTH: Final = 440
HEIGHT: Final = 250
LEFT: Final = 62
RIGHT: Final = 18
TOP: Final = 14
BOTTOM: Final = 46
POINTS: Final = 5000  # of all lines of a chart together: 50 lines have 100 each
MOST_POINTS: Final = 360  # of a line: one a pixel
COLOURS: Final = 8
DASHES: Final = 4
STYLES: Final = COLOURS * DASHES
LETTER: Final = 6  # width of a letter
BAR: Final = 22  # height of a row of bars
MOST_BARS: Final = 64
LONG_NAME: Final = 30  # characters of a row's name
Points = Float64[np.ndarray, "n 2"]


@final
@dataclass(frozen=True)
class Series:
    """One line of a chart. A value that is not finite interrupts the line."""

    name: str
    x: Values
    y: Values
    style: int = 0
    dots: bool = False
    predicted: bool = False
    """True for a prediction, which is dashed."""
    dashes: int = 0
    """The kind of dashes, 0 for none: between them an equal line is seen that lies under it."""
    is_faint: bool = False
    """True for a line in the background, of values that another line is the mean of."""

    @property
    def classes(self) -> str:
        """The classes of the line in the style of the page."""
        return style_classes(self.style, self.predicted, self.dashes) + " faint" * self.is_faint


@final
@dataclass(frozen=True)
class Chart:
    """A drawn chart, with its title and its legend."""

    title: str
    svg: Markup
    legend: Sequence[tuple[str, str]]
    """Classes and name of each line or part; empty if there is one."""
    note: str = ""


@final
@dataclass(frozen=True)
class BarRow:
    """A row of a bar chart: values of the parts, one after the other."""

    name: str
    values: Sequence[float]


def line_chart(
    title: str,
    x: ChartAxis,
    y: ChartAxis,
    series: Sequence[Series],
    note: str = "",
    legend: bool = True,
) -> Chart | None:
    """Draws lines over a common axis; None if no line has a finite point."""
    budget = min(MOST_POINTS, max(2, POINTS // max(1, len(series))))
    lines = [thinned(line, budget) for line in series]
    lines = [line for line in lines if np.isfinite(line.x + line.y).any()]
    if not lines:
        return None
    x_scale = axis_scale(x, np.concatenate([line.x for line in lines]))
    y_scale = axis_scale(y, np.concatenate([line.y for line in lines]))
    frame = Frame(x_scale, y_scale)
    body = [*frame.grid(), *(mark for line in lines for mark in frame.marks(line))]
    names = [(line.classes, line.name) for line in lines if not line.is_faint]
    names = names if len(names) > 1 and legend else []
    return Chart(title, svg(title, described(lines, frame), HEIGHT, body), names, note)


def bar_chart(
    title: str, x: ChartAxis, rows: Sequence[BarRow], parts: Sequence[str]
) -> Chart | None:
    """Draws a row of bars for each name, with a colour for each part; None without rows."""
    rows = rows[:MOST_BARS]
    sums = np.array([sum(row.values) for row in rows])
    if not len(rows) or not np.isfinite(sums).all() or not sums.max() > 0:
        return None
    scale = axis_scale(x, np.array([0.0, *sums]))
    height = TOP + BAR * len(rows) + BOTTOM
    left = 24 + LETTER * max(min(len(row.name), LONG_NAME) for row in rows)
    body = [*bar_grid(scale, left, height)]
    for place, row in enumerate(rows):
        body += bar_marks(row, scale, left, TOP + BAR * place)
    names = [(f"c{index % COLOURS}", name) for index, name in enumerate(parts)]
    unit = f"{x.label}; " if x.label else ""
    longest = max(rows, key=lambda row: sum(row.values)).name
    text = f"Bars of {len(rows)} rows: {unit}the longest is {longest}."
    return Chart(title, svg(title, text, height, body), names if len(parts) > 1 else [])


def style_classes(style: int, predicted: bool = False, dashes: int = 0) -> str:
    """Returns the classes of the colour and the dashes of a style."""
    kind = DASHES if predicted else (style // COLOURS + dashes) % DASHES
    return f"c{style % COLOURS} d{kind}"


def thinned(series: Series, most: int) -> Series:
    """Returns a line of about `most` points: means of equally many neighbours, or, for a faint
    line, their smallest and largest values.
    """
    size = -(-len(series.x) * (1 + series.is_faint) // most)
    if size <= 1:
        return series
    starts = np.arange(0, len(series.x), size)
    sizes = np.diff([*starts, len(series.x)])
    x = np.add.reduceat(series.x, starts) / sizes
    if not series.is_faint:
        return replace(series, x=x, y=np.add.reduceat(series.y, starts) / sizes)
    ends = np.fmin.reduceat(series.y, starts), np.fmax.reduceat(series.y, starts)
    return replace(series, x=np.repeat(x, 2), y=np.stack(ends, 1).reshape(-1))


def described(lines: Sequence[Series], frame: "Frame") -> str:
    """Returns the alternative text of a line chart: axes, and begin and end of the lines."""
    text = f"{frame.y.label} over {frame.x.label}."
    lines = [line for line in lines if not line.is_faint]
    for line in lines[:8]:
        values = line.y[np.isfinite(line.y)]
        if len(values):
            text += f" {line.name}: from {values[0]:.4g} to {values[-1]:.4g}."
    return text + (f" And {len(lines) - 8} more lines." if len(lines) > 8 else "")


def svg(title: str, text: str, height: int, body: Sequence[str]) -> Markup:
    """Returns a picture with its title and its alternative text."""
    content = "".join([title, text, *body]).encode(errors="surrogatepass")
    name = f"chart-{xxhash.xxh3_64_hexdigest(content)}"
    head = (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name} {name}-text">'
        f'<title id="{name}">{escape(title)}</title><desc id="{name}-text">{escape(text)}</desc>'
    )
    return Markup("".join([head, *body, "</svg>"]))


@final
@dataclass(frozen=True)
class Frame:
    """The two axes of a line chart."""

    x: AxisScale
    y: AxisScale

    def grid(self) -> Iterator[str]:
        """Yields lines and texts of both axes."""
        bottom = HEIGHT - BOTTOM
        for value, text in self.y.ticks:
            y = self._places_y(np.array([value]))[0]
            yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            yield text_at(LEFT - 6, y + 4, text, "end")
        for value, text in self.x.ticks:
            x = self._places_x(np.array([value]))[0]
            yield f'<path class="axis" d="M{x:.1f} {bottom}v4"/>'
            yield text_at(x, bottom + 17, text, "middle")
        yield f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>'
        yield text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, self.x.label, "middle", "label")
        middle = (TOP + bottom) / 2
        yield (
            f'<text class="label" text-anchor="middle" transform="translate(13 {middle:.0f}) '
            f'rotate(-90)">{escape(self.y.label)}</text>'
        )

    def marks(self, line: Series) -> Iterator[str]:
        """Yields the line and the points of a series."""
        x, y = self._places_x(line.x), self._places_y(line.y)
        yield f'<path class="line {line.classes}" d="{line_path(x, y)}"/>'
        drawn = np.isfinite(x + y)
        if line.dots or drawn.sum() == 1:
            for left, top in zip(x[drawn], y[drawn], strict=True):
                yield f'<circle class="{line.classes}" cx="{left:.1f}" cy="{top:.1f}" r="3"/>'

    def _places_x(self, values: Values) -> Values:
        return LEFT + (WIDTH - RIGHT - LEFT) * self.x.shares(values)

    def _places_y(self, values: Values) -> Values:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * self.y.shares(values)


def line_path(x: Values, y: Values) -> str:
    """Returns a path through points; a point that is not finite interrupts it."""
    parts, pen = [], "M"
    for left, top, drawn in zip(x, y, np.isfinite(x + y), strict=True):
        if drawn:
            parts.append(f"{pen}{left:.1f} {top:.1f}")
        pen = "L" if drawn else "M"
    return "".join(parts)


def bar_grid(scale: AxisScale, left: int, height: int) -> Iterator[str]:
    """Yields the horizontal axis of a bar chart."""
    bottom = height - BOTTOM
    for value, text in scale.ticks:
        x = bar_place(scale, value, left)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>'
        yield text_at(x, bottom + 17, text, "middle")
    yield f'<path class="axis" d="M{left} {TOP}V{bottom}H{WIDTH - RIGHT}"/>'
    yield text_at((left + WIDTH - RIGHT) / 2, height - 8, scale.label, "middle", "label")


def bar_marks(row: BarRow, scale: AxisScale, left: int, top: int) -> Iterator[str]:
    """Yields the name of a row and its bars."""
    name = row.name if len(row.name) <= LONG_NAME else f"{row.name[: LONG_NAME - 1]}…"
    yield text_at(left - 6, top + BAR / 2 + 4, name, "end")
    begin = 0.0
    for index, value in enumerate(row.values):
        x, end = bar_place(scale, begin, left), bar_place(scale, begin + value, left)
        yield (
            f'<rect class="c{index % COLOURS}" x="{x:.1f}" y="{top + 3}" '
            f'width="{max(0.0, end - x):.1f}" height="{BAR - 6}"/>'
        )
        begin += value


def bar_place(scale: AxisScale, value: float, left: int) -> float:
    """Returns the place of a value on the horizontal axis of a bar chart."""
    return float(left + (WIDTH - RIGHT - left) * scale.shares(np.array([value]))[0])


def text_at(x: int | float, y: int | float, text: str, anchor: str, kind: str = "tick") -> str:
    """Returns a text of the picture."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
