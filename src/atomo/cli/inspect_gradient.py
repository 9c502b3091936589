"""`atomo inspect`: shows a gradient, and the error of codecs on it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from atomo.analysis.gradient_report import (
    Cluster,
    EncodingErrors,
    Layer,
    clusters,
    histogram,
    layers,
    losses,
    singular_values,
)
from atomo.cli.bench import CAPTURE, BenchOptions, read_gradient
from atomo.codecs import make_codec
from atomo.config.effect_tables import ALWAYS, Effect, build_reporting_idle
from atomo.core.arguments import option, parse_arguments
from atomo.core.plotting import pyplot_for
from atomo.errors import ConfigError
from atomo.launch.console import report_console

__all__ = ["INSPECT_EFFECTS", "InspectOptions", "main"]

Row = Layer | Cluster | EncodingErrors

DESCRIPTION = """\
Shows a gradient layer by layer, and the error of each codec on it: over all entries, positive and
negative entries, large entries (beyond the 95th percentile of magnitudes) and small entries.

  atomo train --dump-every 50 --train-dir runs/x
  atomo inspect --tensor runs/x/gradients/step-00000050.safetensors --code 'svd; topk(ratio=0.01)'
  atomo inspect --png gradient.png"""
PLOTTED = 6  # number of layers plotted, the largest


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """The options of `atomo inspect`."""

    tensor: str = option("", "gradient, .safetensors or .npz; empty: one of --network on --dataset")
    code: str = option("svd", "codecs to try, separated by ';'")
    network: str = option("LeNet", "model that the gradient is computed with")
    dataset: str = option("Digits", "data set that the gradient is computed on")
    data_dir: str = option("data", "folder of the data sets")
    steps: int = option(20, "steps of training before the gradient is taken")
    png: str = option("", "file for a picture of histograms and spectra; empty: none")


INSPECT_EFFECTS: Final[Mapping[str, Effect[InspectOptions]]] = MappingProxyType(
    {**dict.fromkeys(("tensor", "code", "png"), ALWAYS), **CAPTURE}
)


def main(words: Sequence[str]) -> int:
    """Prints the tables, and draws the picture of `--png`."""
    build = build_reporting_idle(InspectOptions, INSPECT_EFFECTS, "inspect")
    options = parse_arguments(InspectOptions, words, "inspect", DESCRIPTION, build)
    pyplot = pyplot_for(options.png) if options.png else None
    codecs = [make_codec(spec) for spec in options.code.split(";") if spec.strip()]
    shared = {name: getattr(options, name) for name in ("tensor", "network", "dataset", "steps")}
    gradient = read_gradient(BenchOptions(data_dir=options.data_dir, **shared))
    # A file or a pipe has no width, and truncated figures are useless.
    console = report_console()
    show(console, "layers", Layer, layers(gradient))
    show(console, "clusters of lss", Cluster, clusters(gradient))
    lost = [losses(codec, gradient) for codec in codecs]
    show(console, "relative error of one encoding", EncodingErrors, lost)
    if pyplot is not None:
        draw(pyplot, gradient, Path(options.png))
        console.print(f"wrote {options.png}", markup=False)
    return 0


def show(console: Console, title: str, kind: type[Row], rows: Sequence[Row]) -> None:
    """Prints a table, and the meaning of its columns below."""
    console.print(table(title, kind, rows))
    for column in fields(kind):
        if column.metadata:
            console.print(f"  {column.name:12}{column.metadata['help']}", highlight=False)
    console.print()


def table(title: str, kind: type[Row], rows: Sequence[Row]) -> Table:
    """Returns one row a record, one column a field."""
    out = Table(title=title, box=box.SIMPLE_HEAD)
    for column in fields(kind):
        words = column.type is str
        out.add_column(column.name, justify="left" if words else "right", no_wrap=words)
    for row in rows:
        out.add_row(*(text(value) for value in asdict(row).values()))
    return out


def text(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def draw(pyplot: ModuleType, gradient: Mapping[str, Tensor], path: Path) -> None:
    """Draws a histogram and a spectrum for each of the largest layers.

    Raises:
        ConfigError: the file cannot be written.
    """
    matrices = [item for item in gradient.items() if item[1].ndim > 1]
    largest = sorted(matrices, key=lambda item: -item[1].numel())[:PLOTTED]
    figure, axes = pyplot.subplots(
        2, len(largest), figsize=(3 * len(largest), 6), squeeze=False, layout="constrained"
    )
    for (name, tensor), top, bottom in zip(largest, axes[0], axes[1], strict=True):
        share = histogram(tensor)
        edges = [float(x) for x in tensor.aminmax()]
        width = (edges[1] - edges[0]) / len(share) or 1.0
        top.bar([edges[0] + width * (i + 0.5) for i in range(len(share))], share.tolist(), width)
        top.set(title=name, yscale="log", xlabel="entry", ylabel="share of entries")
        values = singular_values(tensor)
        bottom.plot(values.tolist(), marker=".")
        floor = 1e-6 * float(values[0]) or 1e-30  # below it is rounding, not gradient
        bottom.set(yscale="log", ylim=(floor, None), xlabel="rank", ylabel="singular value")
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--png {path}: {error}") from error
    finally:
        pyplot.close(figure)
