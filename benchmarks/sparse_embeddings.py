"""Savings of a worker if the gradient of an embedding is passed to the codec as rows.

    python benchmarks/sparse_embeddings.py --features 203882 --samples 256 --words 71 --hidden 256

The frequency of rows is that of words (Zipf). For each codec and memory, the columns are: the share
of rows of the gradient that a step touches; the share of rows with nonzero entries in the encoded
tensor, with the memory added; the milliseconds of one core from the rows of the batch to the frame,
with a whole gradient (cleared, added to, encoded) and with rows; and the bytes of both frames,
which are equal except for `rows` in place of `sgd`. The defaults are the sizes of amz13k, with
fewer hidden units.
"""

import argparse
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Generator, Size, Tensor

from atomo.codecs import make_codec
from atomo.codecs.rows import RowGradient
from atomo.exchange import Compressor
from atomo.fusion import Bucket, plan
from atomo.memory import make_memory
from atomo.options.grouping import ONE
from atomo.wire import Compression

CODES = (
    ("topk(ratio=0.001)", "topk(ratio=0.001)", "none"),
    ("dgc(ratio=0.001)", "dgc(ratio=0.001)", "none"),
    ("dragonn(ratio=0.001)", "dragonn(ratio=0.001)", "none"),
    ("sgd", "rows", "none"),
    ("qsgd(bits=4)", "rows(values=qsgd(bits=4))", "none"),
    ("topk(ratio=0.001)", "topk(ratio=0.001)", "residual"),
    ("dragonn(ratio=0.001)", "dragonn(ratio=0.001)", "residual"),
)


@dataclass
class Variant:
    """A compressor with its bucket and gradients, and its times so far."""

    bucket: Bucket
    compressor: Compressor
    memory: Any
    rows: dict[str, RowGradient]
    took_ms: list[float]
    sent: int = 0

    def step(self, flat: Tensor, gradient: RowGradient, number: int) -> None:
        """Runs one step, from the rows of the batch to the frame."""
        began = time.thread_time()
        if self.rows:
            self.rows["first"] = gradient
        else:
            gradient.add_to(flat.zero_().view(gradient.shape))
        self.sent = len(self.compressor.compress(self.bucket, flat, number))
        self.took_ms.append(1e3 * (time.thread_time() - began))


def make_variant(code: str, memory: str, gradient: RowGradient, *, whole: bool) -> Variant:
    """Returns a variant before its first step; `whole`: with a whole gradient, not with rows."""
    (bucket,) = plan([("first", gradient.shape)], make_codec(code), ONE)
    compressor_memory, rows = make_memory(memory), {} if whole else {"first": gradient}
    return Variant(
        bucket,
        Compressor(compressor_memory, Compression(), 1, 0, rows=rows),
        compressor_memory,
        rows,
        [],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=203_882)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--words", type=int, default=71, help="of a sample")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| codec | memory | rows touched | rows encoded | whole, rows: ms | whole, rows: MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for before, after, memory in CODES:
        print(measured(before, after, memory, options), flush=True)


def measured(before: str, after: str, memory: str, options: argparse.Namespace) -> str:
    """Measures a codec and a memory; returns a row of the table."""
    draws, touched = Generator().manual_seed(1), 0.0
    flat = torch.zeros(options.features * options.hidden)
    first = drawn(options, draws)
    variants = [
        make_variant(before, memory, first, whole=True),
        make_variant(after, memory, first, whole=False),
    ]
    for step in range(options.steps + 1):
        gradient = drawn(options, draws)
        touched = len(gradient.rows) / options.features
        for variant in variants:
            variant.step(flat, gradient, step)
    shape = Size((options.features, options.hidden))
    residuals = [t.view(shape) for t in variants[1].memory.state_dict().values()]
    full = float((residuals[0] != 0).any(1).float().mean()) if residuals else touched
    ms = ", ".join(f"{median(variant.took_ms[1:]):.0f}" for variant in variants)
    sizes = ", ".join(f"{variant.sent / 1e6:.3g}" for variant in variants)
    codecs = f"`{before}`" if before == after else f"`{before}`, `{after}`"
    return f"| {codecs} | {memory} | {touched:.1%} | {full:.1%} | {ms} | {sizes} |"


def drawn(options: argparse.Namespace, draws: Generator) -> RowGradient:
    """Returns a random gradient of a batch of words."""
    likely = 1 / torch.arange(1, options.features + 1, dtype=torch.float64)
    words = likely.multinomial(options.samples * options.words, True, generator=draws)
    rows = words.bincount().nonzero().flatten()
    values = torch.randn(len(rows), options.hidden, generator=draws)
    return RowGradient(rows, values, Size((options.features, options.hidden)))


if __name__ == "__main__":
    main()
