"""What a worker pays for scanning the gradient of an embedding of which a batch touches few rows.

    python benchmarks/sparse_embeddings.py --features 135909 --hidden 64

Rows are touched as often as words are said (Zipf). For each codec and its memory: how many rows of
the gradient a step touches, and how many of what is encoded, the memory added, have any entry that
is not zero; milliseconds of clearing the gradient, of adding the batch's rows to it, and of
encoding it whole; and of encoding the touched rows alone, gathered, with no memory, which is the
least that a way of their own could take.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Generator

from atomo.codecs import make_codec
from atomo.memory import default_memory, make_memory

SAMPLES, WORDS = 64, 76  # a batch of the data set that the default size is that of
CODES = ("topk(ratio=0.001)", "dgc(ratio=0.001)", "randk(ratio=0.01)", "qsgd(bits=4)", "sgd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=135_909)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=24)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| codec | memory | rows touched | rows encoded | clear | add | encode | rows alone |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for code in CODES:
        print(measured(code, given.features, given.hidden, given.steps))


def measured(code: str, features: int, hidden: int, steps: int) -> str:
    """A row of the table."""
    codec = make_codec(code)
    name = default_memory(codec, 0.9)
    memory, none = make_memory(name, 0.9, False, 2), make_memory("none", 0.9, False, 2)
    likely = 1 / torch.arange(1, features + 1, dtype=torch.float64)
    flat = torch.zeros(features * hidden)
    draws, times, touched, full = Generator().manual_seed(1), list[list[float]](), [0.0], 0.0
    shape = {"first": torch.Size((features, hidden))}
    for step in range(steps):
        said = likely.multinomial(SAMPLES * WORDS, True, generator=draws)
        rows = said.bincount().nonzero().flatten()
        values = torch.randn(len(rows), hidden, generator=draws)
        cleared = timed(flat.zero_)
        gradient = flat.view(features, hidden)
        added = timed(partial(gradient.index_add_, 0, rows, values))
        few, random = {"first": values.shape}, Generator().manual_seed(step)
        alone = timed(partial(none.encode, codec, values.flatten(), few, random))
        whole = timed(partial(memory.encode, codec, flat, shape, random))
        times.append([cleared, added, whole, alone])
        touched.append(len(rows) / features)
    kept = [t for t in memory.state_dict().values() if t.numel() == flat.numel()]
    if kept:
        seen = torch.stack([(t.view(features, hidden) != 0).any(1) for t in kept]).any(0)
        full = float(seen.float().mean())
    later = [median(column) for column in zip(*times[steps // 2 :], strict=True)]
    told = " | ".join(f"{1e3 * seconds:.1f}" for seconds in later)
    return f"| `{code}` | {name} | {median(touched[1:]):.1%} | {full or touched[-1]:.1%} | {told} |"


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
