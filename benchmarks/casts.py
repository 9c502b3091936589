"""Time to encode to half precision, with and without a residual, relative to a copy.

Each figure is the shortest processor time of several, so that other load on the machine has little
effect.

python benchmarks/casts.py [ENTRIES]
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Generator

from atomo.codecs import make_codec
from atomo.core.process.allocator import keep_freed_memory

ENTRIES = int(sys.argv[1]) if len(sys.argv) > 1 else 11_173_962  # parameters of a ResNet18


def least(body: Callable[[], object], repetitions: int = 9) -> float:
    """Returns the shortest processor time of several calls, seconds."""
    times = []
    for _ in range(repetitions):
        started = time.process_time()
        body()
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    """Measures the codecs, and prints a line for each."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as the ranks of a job do
    gradient = torch.randn(ENTRIES, generator=Generator().manual_seed(0))
    residual, generator = torch.zeros(ENTRIES), Generator()
    out = torch.empty(ENTRIES)
    copy = least(lambda: out.copy_(gradient))
    print(f"a copy of {ENTRIES:,} entries takes {1e3 * copy:.2f} ms; tensor.half() takes", end=" ")
    print(f"{least(gradient.half) / copy:.2f} of it")
    for name in ("fp16", "bf16"):
        codec = make_codec(name)
        alone = least(lambda: codec.encode(gradient, generator))  # noqa: B023  # called here
        with_residual = least(lambda: codec.encode_residual(gradient, residual, generator))  # noqa: B023
        print(f"{name}: {alone / copy:.2f} copies, {with_residual / copy:.2f} with the residual")


if __name__ == "__main__":
    main()
