"""Draws the figures of all codecs: a row each, so that every label can be read.

python benchmarks/codecs_picture.py docs/codecs/figures.md --png docs/codecs.png
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, final

from atomo.codecs import make_codec
from atomo.core.plotting import pyplot_for

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "dense": ("sgd", "fp16", "bf16"),
        "spectral": ("svd", "entrywise", "fourier", "atomo"),
        "sparse": ("topk", "threshold", "randk", "chunktopk", "dgc", "dragonn", "rows"),
        "levels": ("qsgd", "terngrad", "natural"),
        "signs": ("signsgd", "signum", "efsignsgd", "onebit"),
        "sketches": ("sketchml", "lss", "countsketch"),
    }
)
VOTES: Final = ("signsgd", "signum")  # a direction is no estimate: its error says nothing
EXACT: Final = 1e-4  # errors below it are drawn there


@final
@dataclass(frozen=True)
class Figures:
    """Cost and error of one codec."""

    spec: str
    encode: float  # copies of the gradient
    decode: float  # likewise
    bits: float  # per entry
    error: float  # relative

    @property
    def id(self) -> str:
        """The name of the codec."""
        return make_codec(self.spec).id

    @property
    def family(self) -> str:
        """The page that describes it."""
        return next(family for family, ids in FAMILIES.items() if self.id in ids)


def main() -> None:
    """Reads a table of Markdown, and draws it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="with rows as docs/codecs/figures.md has them")
    parser.add_argument("--png", type=Path, required=True)
    options = parser.parse_args()
    pyplot = pyplot_for(str(options.png))
    draw(pyplot, read(options.table.read_text()), options.png)


def read(text: str) -> list[Figures]:
    """Returns the rows of the table: codec, encode, decode, bits, two others or none, error."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, re.MULTILINE)
    numbers = [(spec, [float(cell) for cell in cells.split(" | ")]) for spec, cells in rows]
    return [Figures(spec, row[0], row[1], row[2], row[-1]) for spec, row in numbers]


def draw(pyplot: Any, found: Sequence[Figures], path: Path) -> None:
    """Draws bits, times and error side by side, the fewest bits on top."""
    rows = sorted(found, key=lambda one: -one.bits)
    figure, axes = pyplot.subplots(
        1, 3, figsize=(12, 0.27 * len(rows) + 1.6), sharey=True, layout="constrained"
    )
    colours = dict(
        zip(FAMILIES, pyplot.rcParams["axes.prop_cycle"].by_key()["color"], strict=False)
    )
    for place, one in enumerate(rows):
        mark(axes, place, one, colours[one.family])
    axes[0].set_yticks(range(len(rows)), [one.spec for one in rows], family="monospace")
    axes[0].set(xlabel="bits per entry", title="size of the message")
    axes[1].set(xlabel="copies of the gradient", title="time: ● encode   ○ decode and add")
    axes[2].set(xlabel="relative error", title="error of one encoding, memory aside")
    axes[2].axvline(1, color="gray", ls="--", lw=1)  # as large as the gradient
    for axis in axes:
        axis.set(xscale="log", ylim=(-0.7, len(rows) - 0.3))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    handles = [
        pyplot.Line2D([], [], color=c, marker="o", ls="", label=f) for f, c in colours.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def mark(axes: Sequence[Any], place: int, one: Figures, colour: str) -> None:
    """Draws one row."""
    size, time, error = axes
    size.plot(one.bits, place, "o", color=colour)
    time.plot(one.encode, place, "o", color=colour)
    time.plot(one.decode, place, "o", color=colour, markerfacecolor="white")
    if one.id in VOTES:
        error.text(EXACT, place, "a vote: no estimate", color=colour, fontsize=8, va="center")
    else:
        error.plot(max(one.error, EXACT), place, "<" if one.error < EXACT else "o", color=colour)


if __name__ == "__main__":
    main()
