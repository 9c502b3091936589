"""Savings of a worker when the gradient of an embedding reaches the codec as rows.

    python benchmarks/sparse_embeddings.py --features 203882 --samples 256 --words 71 --hidden 256

Rows are touched as often as words are said (Zipf). For each codec and its memory: how many rows of
the gradient a step touches, and how many of what is encoded, the memory added, have any entry that
is not zero; milliseconds of one core from the batch's rows to the frame, by a whole gradient
(cleared, added to, encoded) and by rows; and the bytes of both frames, which but for `rows` in
place of `sgd` are the same. The defaults are the sizes of amz13k, with fewer hidden units.
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
class Way:
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


def way(code: str, memory: str, gradient: RowGradient, *, whole: bool) -> Way:
    """Returns a way before its first step."""
    (bucket,) = plan([("first", gradient.shape)], make_codec(code), ONE)
    held, rows = make_memory(memory), {} if whole else {"first": gradient}
    return Way(bucket, Compressor(held, Compression(), 1, 0, rows=rows), held, rows, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=203_882)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--words", type=int, default=71, help="of a sample")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| codec | memory | rows touched | rows encoded | whole, rows: ms | whole, rows: MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for before, after, memory in CODES:
        print(measured(before, after, memory, given), flush=True)


def measured(before: str, after: str, memory: str, given: argparse.Namespace) -> str:
    """Returns a row of the table."""
    draws, touched = Generator().manual_seed(1), 0.0
    flat = torch.zeros(given.features * given.hidden)
    first = drawn(given, draws)
    ways = [way(before, memory, first, whole=True), way(after, memory, first, whole=False)]
    for step in range(given.steps + 1):
        gradient = drawn(given, draws)
        touched = len(gradient.rows) / given.features
        for one in ways:
            one.step(flat, gradient, step)
    shape = Size((given.features, given.hidden))
    kept = [t.view(shape) for t in ways[1].memory.state_dict().values()]
    full = float((kept[0] != 0).any(1).float().mean()) if kept else touched
    ms = ", ".join(f"{median(one.took_ms[1:]):.0f}" for one in ways)
    sizes = ", ".join(f"{one.sent / 1e6:.3g}" for one in ways)
    named = f"`{before}`" if before == after else f"`{before}`, `{after}`"
    return f"| {named} | {memory} | {touched:.1%} | {full:.1%} | {ms} | {sizes} |"


def drawn(given: argparse.Namespace, draws: Generator) -> RowGradient:
    """Returns the gradient of a batch of words."""
    likely = 1 / torch.arange(1, given.features + 1, dtype=torch.float64)
    said = likely.multinomial(given.samples * given.words, True, generator=draws)
    rows = said.bincount().nonzero().flatten()
    values = torch.randn(len(rows), given.hidden, generator=draws)
    return RowGradient(rows, values, Size((given.features, given.hidden)))


if __name__ == "__main__":
    main()
