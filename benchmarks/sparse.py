"""Speed and size of the sparsifiers, as ratios to a copy of the same gradient, on one thread.

    python benchmarks/sparse.py                            random gradients, 11.17 and 25.6 M
    entries python benchmarks/sparse.py --tensor gradient.safetensors

Encoding includes the residual, and decoding adds to a sum. The figures do not include frames and
checksums (`benchmarks/codecs.py` measures the whole path). The bound on indices is log2 C(n, k)
bits.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Generator, Tensor

from atomo.analysis.measure import copy_time, timed
from atomo.codecs import Codec, make_codec
from atomo.codecs.sparse.payload import Sparse

SIZES = (11_170_000, 25_600_000)
RATIOS = (0.001, 0.01)


def main() -> None:
    """Prints one table for each gradient."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=Path, help="a gradient as safetensors")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for gradient in gradients(options.tensor):
        copy_s = copy_time(gradient, options.repetitions)
        print(f"\n{gradient.numel():,} entries; a copy takes {1e3 * copy_s:.2f} ms\n")
        print("| codec | encode / copy | decode-add / copy | bits per entry sent | of the bound |")
        print("|---|---|---|---|---|")
        for spec in specs(gradient):
            print(row(make_codec(spec), gradient, options.repetitions), flush=True)
        k = gradient.numel() // 100
        best = min(timed(lambda: gradient.abs().topk(k, sorted=False)) for _ in range(2))  # noqa: B023
        print(f"\ntorch.topk, 1 %: {best / copy_s:.1f} copies")


def gradients(path: Path | None) -> Iterator[Tensor]:
    """Yields the gradients to measure: that of a file, or random ones with a scale per row."""
    if path:
        yield torch.cat([tensor.flatten() for tensor in load_file(path).values()])
        return
    for size in SIZES:
        generator = Generator().manual_seed(0)
        scale = torch.rand(size // 1000, 1, generator=generator).pow(4)
        yield (torch.randn(size // 1000, 1000, generator=generator) * scale).flatten()


def specs(gradient: Tensor) -> list[str]:
    """Returns the codecs to measure, with thresholds that select as many entries as the ratios."""
    n, names = gradient.numel(), []
    ordered = gradient.abs().sort(descending=True).values
    for ratio in RATIOS:
        names.append(f"threshold(value={float(ordered[int(n * ratio)]):.9g})")
        names += [f"{code}(ratio={ratio})" for code in ("topk", "dgc", "dragonn", "chunktopk")]
        names += [f"randk(ratio={ratio}, unbiased=False)", f"topk(ratio={ratio}, values=fp16)"]
    return names


def row(codec: Codec[Any], gradient: Tensor, repetitions: int) -> str:
    """Measures a codec; returns its row of the table."""
    zeros, residual, total = (torch.zeros_like(gradient) for _ in range(3))
    copy_times, encode_times, decode_times = [], [], []
    for step in range(repetitions + 1):
        # The residual has the whole gradient; the copy just before is the time to compare with.
        copy_times.append(timed(lambda: residual.copy_(gradient)))
        generator = Generator().manual_seed(step)
        encode_times.append(timed(lambda: codec.encode_residual(zeros, residual, generator)))  # noqa: B023
    payload = codec.encode(gradient, Generator().manual_seed(0))
    for _ in range(repetitions + 1):
        decode_times.append(timed(lambda: codec.add_decoded(payload, total, 0.5)))
    sent = codec.decode(payload, gradient.shape).count_nonzero().item()
    bits = 8 * sum(tensor.nbytes for tensor in codec.sections(payload)) / sent
    bound = "-"
    if isinstance(payload, Sparse) and codec.id != "chunktopk":
        bound = f"{8 * payload.indices.numel() / log2_choose(gradient.numel(), int(sent)):.3f}"
    copy_s = min(copy_times[1:])
    encode, decode = min(encode_times[1:]) / copy_s, min(decode_times[1:]) / copy_s
    return f"| `{codec}` | {encode:.2f} | {decode:.3f} | {bits:.2f} | {bound} |"


def log2_choose(n: int, k: int) -> float:
    """Returns the bits that identify one set of k out of n entries."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


if __name__ == "__main__":
    main()
