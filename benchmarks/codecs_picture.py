"""Draws the figures of all codecs, one row each, with readable labels.

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
        "sparse": ("topk", "tiletopk", "threshold", "randk", "chunktopk", "dgc", "dragonn", "rows"),
        "levels": ("qsgd", "terngrad", "natural", "lloydmax"),
        "signs": ("signsgd", "signum", "efsignsgd", "onebit"),
        "sketches": ("sketchml", "lss", "countsketch"),
    }
)
VOTES: Final = (
    "signsgd",
    "signum",
)  # a vote is no estimate of the gradient: its error has no meaning
EXACT: Final = 1e-4  # smaller errors are drawn at this value


@final
@dataclass(frozen=True)
class Figures:
    """Cost and error of one codec."""

    spec: str
    encode: float  # copies of the gradient
    decode: float  # copies of the gradient
    bits: float  # per entry
    error: float  # relative

    @property
    def id(self) -> str:
        """The name of the codec."""
        return make_codec(self.spec).id

    @property
    def family(self) -> str:
        """The family of codecs."""
        return next(family for family, ids in FAMILIES.items() if self.id in ids)


def main() -> None:
    """Reads a Markdown table, and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "table", type=Path, help="file with rows like those of docs/codecs/figures.md"
    )
    parser.add_argument("--png", type=Path, required=True)
    options = parser.parse_args()
    pyplot = pyplot_for(str(options.png))
    draw(pyplot, read(options.table.read_text()), options.png)


def read(text: str) -> list[Figures]:
    """Returns the rows of the table: codec, encode, decode, bits, up to two others, error."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, re.MULTILINE)
    numbers = [(spec, [float(cell) for cell in cells.split(" | ")]) for spec, cells in rows]
    return [Figures(spec, row[0], row[1], row[2], row[-1]) for spec, row in numbers]


def draw(pyplot: Any, measurements: Sequence[Figures], path: Path) -> None:
    """Draws bits, times and error side by side, with the fewest bits at the top."""
    rows = sorted(measurements, key=lambda row: -row.bits)
    figure, axes = pyplot.subplots(
        1, 3, figsize=(12, 0.27 * len(rows) + 1.6), sharey=True, layout="constrained"
    )
    colours = dict(
        zip(FAMILIES, pyplot.rcParams["axes.prop_cycle"].by_key()["color"], strict=False)
    )
    for place, row in enumerate(rows):
        mark(axes, place, row, colours[row.family])
    axes[0].set_yticks(range(len(rows)), [row.spec for row in rows], family="monospace")
    axes[0].set(xlabel="bits per entry", title="size of the message")
    axes[1].set(xlabel="copies of the gradient", title="time: ● encode   ○ decode and add")
    axes[2].set(xlabel="relative error", title="error of one encoding, memory aside")
    axes[2].axvline(1, color="gray", ls="--", lw=1)  # an error as large as the gradient
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


def mark(axes: Sequence[Any], place: int, row: Figures, colour: str) -> None:
    """Draws one row."""
    size, time, error = axes
    size.plot(row.bits, place, "o", color=colour)
    time.plot(row.encode, place, "o", color=colour)
    time.plot(row.decode, place, "o", color=colour, markerfacecolor="white")
    if row.id in VOTES:
        error.text(EXACT, place, "a vote: no estimate", color=colour, fontsize=8, va="center")
    else:
        error.plot(max(row.error, EXACT), place, "<" if row.error < EXACT else "o", color=colour)


if __name__ == "__main__":
    main()
