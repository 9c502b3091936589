"""ATOMO's bases and the sketches side by side: time, bytes and error on one gradient, one thread.

    python benchmarks/bases.py [--entries 11170000] [--repetitions 7] [--code SPEC ...]

Each row is one codec without frames: encoding to payload tensors, and decoding into a sum. Times
are ratios to a copy of the gradient; `error` is ||decoded - g|| / ||g|| of one draw. The gradient
is a matrix of heavy-tailed entries: normal numbers times row scales over three decades.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from atomo.codecs import make_codec

COLUMNS = 18
SPECS = (
    "svd(rank=3)",
    "svd(rank=3, factors=fp16)",
    "entrywise(budget=0.01)",
    "entrywise(budget=0.001)",
    "entrywise(mode=qsgd)",
    "entrywise(mode=terngrad)",
    "fourier(budget=0.01)",
    "atomo(rank=3)",
    "countsketch(ratio=0.1)",
)


def gradient_of(entries: int) -> Tensor:
    """Returns a matrix of about `entries` entries, with the columns of a 3 x 3 convolution."""
    generator = Generator().manual_seed(0)
    rows = entries // COLUMNS
    scales = torch.pow(10.0, 3 * torch.rand(rows, 1, generator=generator) - 3)
    return torch.randn(rows, COLUMNS, generator=generator) * scales


def least(run: Callable[[], object], repetitions: int) -> float:
    """Returns the shortest of several runs, in seconds."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def row(spec: str, gradient: Tensor, repetitions: int) -> str:
    """Returns the figures of one codec."""
    codec, total = make_codec(spec), torch.zeros_like(gradient)
    generator = Generator().manual_seed(1)
    payload = codec.encode(gradient, generator)
    codec.add_decoded(payload, total)
    error = float((total - gradient).norm() / gradient.norm())
    copy_s = least(lambda: total.copy_(gradient), repetitions)
    encode_s = least(lambda: codec.encode(gradient, generator), repetitions)
    add_s = least(lambda: codec.add_decoded(payload, total), repetitions)
    size = sum(tensor.numel() * tensor.itemsize for tensor in codec.sections(payload))
    bits = 8 * size / gradient.numel()
    return (
        f"| `{spec}` | {encode_s / copy_s:.2f} | {add_s / copy_s:.3f} | {bits:.4f} | {error:.2f} |"
    )


def main() -> None:
    """Measures the codecs, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=int, default=11_170_000)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--code", nargs="*", default=SPECS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gradient = gradient_of(options.entries)
    print(f"{tuple(gradient.shape)}, one thread")
    print("| codec | encode / copy | decode-add / copy | bits per entry | error |")
    print("|---|---|---|---|---|")
    for spec in options.code:
        print(row(spec, gradient, options.repetitions), flush=True)


if __name__ == "__main__":
    main()
