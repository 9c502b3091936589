"""`atomo bench`: speed, bytes and error of codecs on your own gradients."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from rich.table import Table
from torch import Tensor

from atomo.analysis.measure import Measurement, measure_codec
from atomo.cli.gradient_file import load_gradient
from atomo.codecs import CODECS, make_codec
from atomo.config.effect_tables import ALWAYS, Effect, build_reporting_idle
from atomo.core.arguments import flag, option, parse_arguments
from atomo.core.bounds import ANY, COUNT, THREADS, Bound, check
from atomo.core.process.allocator import keep_freed_memory
from atomo.launch.console import report_console
from atomo.training.step.sample_gradient import sample_gradient

__all__ = ["BENCH_EFFECTS", "CAPTURE", "BenchOptions", "main", "read_gradient"]

DESCRIPTION = """\
Measures codecs on a gradient: the times of encoding and decoding, as multiples of the time of a
copy; bytes; and the error of one encoding.

  atomo bench
  atomo bench --code 'svd(rank=3); topk(ratio=0.01, values=fp16)' --tensor gradient.safetensors"""

LEGEND = """\
encode: memory, codec, packing and checksum; decode+add: back into a sum. Both are multiples of the
time that a copy of the gradient takes. bytes: the whole message. error: the norm of the error of
one encoding over the norm of the gradient. A memory corrects it in later steps; for majority votes
it has no meaning.
Dense under any codec: vectors of fewer than 8192 entries, which are biases and norms.
"""


BOUNDS: Final[Mapping[str, Bound]] = {
    "steps": ANY,
    "repetitions": COUNT,
    "threads": replace(THREADS, least=1),
}


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of `atomo bench`."""

    code: str = option("", "one codec or several, separated by ';'; empty: all, by their defaults")
    tensor: str = option("", "gradient, .safetensors or .npz; empty: one of --network on --dataset")
    network: str = option("LeNet", "model that the gradient is computed with")
    dataset: str = option("Digits", "data set that the gradient is computed on")
    data_dir: str = option("data", "folder of the data sets")
    steps: int = option(20, "steps of training before the gradient is taken")
    repetitions: int = option(5, "repetitions of each timing; the shortest counts")
    threads: int = option(1, "compute threads")
    json: bool = option(False, "one line of JSON a codec: yes or no")

    def __post_init__(self) -> None:
        check(self, BOUNDS, flag)


def takes_from_training(options: Any) -> bool:
    """True if the gradient is computed here, and not read from a file."""
    return not options.tensor


CAPTURE: Final[Mapping[str, Effect[Any]]] = MappingProxyType(
    dict.fromkeys(
        ("network", "dataset", "data_dir", "steps"),
        Effect(
            takes_from_training,
            "the gradient is read from --tensor {0.tensor}; leave one of the two out",
        ),
    )
)
"""Effects of the options that select a gradient, for `bench` and `inspect`."""

BENCH_EFFECTS: Final[Mapping[str, Effect[BenchOptions]]] = MappingProxyType(
    {**dict.fromkeys(("code", "tensor", "repetitions", "threads", "json"), ALWAYS), **CAPTURE}
)


def main(words: Sequence[str]) -> int:
    """Measures codecs and prints the results."""
    build = build_reporting_idle(BenchOptions, BENCH_EFFECTS, "bench")
    options = parse_arguments(BenchOptions, words, "bench", DESCRIPTION, build)
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the ranks of a job do
    specs = [spec for spec in options.code.split(";") if spec.strip()] or list(CODECS)
    codecs = [make_codec(spec) for spec in specs]
    gradient = read_gradient(options)
    measurements = [measure_codec(codec, gradient, options.repetitions) for codec in codecs]
    if options.json:
        sys.stdout.writelines(
            json.dumps(asdict(measurement)) + "\n" for measurement in measurements
        )
    else:
        report_console().print(table(measurements))
        sys.stdout.write(LEGEND)
    return 0


def read_gradient(options: BenchOptions) -> dict[str, Tensor]:
    """Returns the gradient to measure on.

    Raises:
        DataError: the file cannot be read.
        ConfigError: the file holds other tensors than gradients.
    """
    if not options.tensor:
        return sample_gradient(
            options.network, options.dataset, Path(options.data_dir), steps=options.steps
        )
    return load_gradient(Path(options.tensor), "--tensor")


def table(measurements: Sequence[Measurement]) -> Table:
    """Returns one row a codec."""
    first = measurements[0]
    copy_ms = 1e3 * min(row.copy_s for row in measurements)
    sizes = f"{first.entries:,} entries, {first.dense_entries:,} of them dense"
    out = Table(title=f"{sizes}; a copy takes {copy_ms:.2f} ms")
    for column in ("codec", "encode / copy", "decode+add / copy", "bytes", "bits/entry", "error"):
        out.add_column(column, justify="left" if column == "codec" else "right")
    for row in measurements:
        out.add_row(
            row.spec,
            f"{row.encode_ratio:.1f}",
            f"{row.decode_ratio:.2f}",
            f"{row.frame_bytes:,}",
            f"{row.bits_per_entry:.3f}",
            f"{row.relative_error:.3f}",
        )
    return out
