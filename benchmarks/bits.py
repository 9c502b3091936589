"""Bits per entry of every codec's frames, compared with the entropy bound of its message.

    python benchmarks/bits.py                                  a random gradient
    python benchmarks/bits.py --tensor gradient.safetensors    a real one

The frame is whole: headers, scales and checksum included. The bounds:

* indices: log2 C(n, k) bits, as if every set of k out of n entries had the same probability;
* levels, exponents, signs, clusters and cells: the entropy of the decoded symbols of all layers;
* all other parts, such as values, factors and scales: their size in bits.

A ratio below 1 is no error: clustered indices, and bytes that blosc compresses, can be smaller than
the bound. The last two tables are those of random indices and of a frame of ten kilobytes.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

import atomo
from atomo.analysis.measure import measure_codec
from atomo.codecs import Codec, Granularity, make_codec
from atomo.codecs.levels.payload import Levels
from atomo.codecs.levels.qsgd import QSGD
from atomo.codecs.sketches.lss import Means
from atomo.codecs.sketches.sketchml import Sketched
from atomo.codecs.sparse.payload import Sparse
from atomo.kernels import entropy, rice
from atomo.kernels.clusters import packed_bytes
from atomo.wire import Compression
from parts.codecs_common import SPECS, find_gradient

SIGNS = ("signsgd", "signum", "efsignsgd", "onebit")


def main() -> None:
    """Prints one row for each codec, then the tables of random indices and of a small frame."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=Path, help="gradient as safetensors; written if missing")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--random", type=int, default=0, help="entries of a random gradient")
    parser.add_argument("--code", nargs="*", default=SPECS)
    options = parser.parse_args()
    gradient = find_gradient(options.tensor, options.data_dir, options.random)
    print("| codec | bits per entry | bound | ratio |")
    print("|---|---|---|---|")
    for spec in options.code:
        codec = make_codec(spec)
        bits = measure_codec(codec, gradient, repetitions=1).bits_per_entry
        bound = bound_of(codec, gradient)
        print(f"| `{spec}` | {bits:.4f} | {bound:.4f} | {bits / bound:.3f} |", flush=True)
    print_places()
    print_small_frame()


def bound_of(codec: Codec[Any], gradient: dict[str, Tensor]) -> float:
    """Returns the bound on the bits per entry of all parameters; biases are sent uncompressed."""
    apart = [t for t in gradient.values() if t.ndim < 2]
    coded = [t for t in gradient.values() if t.ndim >= 2]
    if codec.default_granularity is Granularity.ENTRIES:
        coded = [torch.cat([tensor.flatten() for tensor in coded])]
    generator = Generator().manual_seed(1)
    payloads = [codec.encode(tensor, generator) for tensor in coded]
    bits = 32.0 * sum(tensor.numel() for tensor in apart)
    bits += sum(map(message_bits, [codec] * len(coded), payloads, coded))
    symbols = [symbols_of(codec, p, t) for p, t in zip(payloads, coded, strict=True)]
    if any(layer is not None for layer in symbols):
        joined = torch.cat([layer for layer in symbols if layer is not None])
        bits += entropy_of(joined) * len(joined)
    return bits / sum(tensor.numel() for tensor in gradient.values())


def message_bits(codec: Codec[Any], payload: Any, gradient: Tensor) -> float:
    """Returns the bits of a payload without its levels, exponents and signs."""
    n = gradient.numel()
    if isinstance(payload, Sparse):
        k = int(payload.count)
        return log2_choose(n, k) + plain_bits(codec.sections(payload)[2:])
    if isinstance(payload, Levels):
        return plain_bits([payload.norms])
    if isinstance(payload, Means):
        signs = entropy.decompress(payload.words, packed_bytes(n))
        return plain_bits([payload.means, payload.sizes]) + halves_bits(signs)
    if isinstance(payload, Sketched):
        k = int(payload.head[0])
        groups = entropy.decompress(payload.groups, packed_bytes(k))
        cells = entropy.decompress(payload.cells, int(payload.cell_count))
        return (
            log2_choose(n, k)
            + plain_bits([payload.means])
            + halves_bits(groups)
            + entropy_of(cells) * len(cells)
        )
    if codec.id == "natural":
        return 0.0
    if codec.id in SIGNS:
        return n + plain_bits([t for t in codec.sections(payload) if t.is_floating_point()])
    return plain_bits(codec.sections(payload))


def symbols_of(codec: Codec[Any], payload: Any, gradient: Tensor) -> Tensor | None:
    """Returns a number for each entry, equal for equal symbols; None if there are no symbols."""
    if not isinstance(payload, Levels) and codec.id != "natural":
        return None
    decoded: Tensor = codec.decode(payload, gradient.shape).flatten()
    if isinstance(codec, QSGD):
        norms = payload.norms.repeat_interleave(codec.bucket(len(decoded)))[: len(decoded)]
        levels: Tensor = (decoded * codec.highest_level / norms.clamp(min=1e-38)).round()
        return levels
    signs: Tensor = decoded.sign()
    return decoded if codec.id == "natural" else signs


def halves_bits(packed: Tensor) -> float:
    """Returns the entropy, in bits, of the two 4-bit numbers in each byte."""
    return entropy_of(torch.cat([packed & 15, packed >> 4])) * 2 * len(packed)


def entropy_of(symbols: Tensor) -> float:
    """Returns the bits per symbol of the empirical distribution."""
    _, counts = np.unique(symbols.numpy(), return_counts=True)
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())


def plain_bits(tensors: list[Tensor]) -> float:
    """Returns the size of tensors, in bits."""
    return 8.0 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def log2_choose(n: int, k: int) -> float:
    """Returns log2 of the number of sets of k out of n."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def print_places(entries: int = 10_000_000) -> None:
    """Prints the size of random index sets and their bound."""
    print(f"\nrandom places among {entries:,}:\n\n| share | bits per place | bound | ratio |")
    print("|---|---|---|---|")
    for share in (0.1, 0.01, 0.001, 0.0001):
        chosen = torch.rand(entries, generator=Generator().manual_seed(2)) < share
        indices = chosen.nonzero().squeeze(1)
        k = len(indices)
        bits, bound = 8 * len(rice.encode(indices, entries)) / k, log2_choose(entries, k) / k
        print(f"| {share:g} | {bits:.3f} | {bound:.3f} | {bits / bound:.4f} |")


def print_small_frame() -> None:
    """Prints the header bytes of a frame of ten kilobytes."""
    tensor = torch.randn(2500, generator=Generator().manual_seed(3))
    frame = atomo.encode(tensor, "sgd", seed=1, compression=Compression(codec="none"))
    spent = len(frame) - 4 * tensor.numel()
    print(
        f"\na frame of {len(frame):,} bytes: {spent} are header, {100 * spent / len(frame):.2f} %"
    )


if __name__ == "__main__":
    main()
