"""Time and size of quantisers and sign codecs, compared with copies and with the entropy.

For each codec, on one thread and in turns, over all parameters of one gradient that the codec
takes:

* encode    from gradient to payload, as a ratio to a memcpy of the same floats
* residual  the same with error feedback, for codecs that need error feedback
* add       from payload into a sum
* bits      of levels and signs per entry, as sent; `scales` are the bits of norms and tables
* entropy   of (sign, level) per entry of the decoded tensor; the bound of an entropy coder

    python benchmarks/quantisers.py [--codec SPEC ...] [--tensor FILE.safetensors]

Without a file, the gradient has the size of a ResNet-18 for CIFAR (11.17 million floats) and is
Gaussian with a scale for each layer. Codecs of plain entries get all layers in one tensor.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Generator, Tensor

from atomo.codecs import Codec, Granularity, Law, make_codec
from atomo.codecs.levels.qsgd import QSGD

CODECS = [
    *("qsgd(levels=1)", "qsgd(levels=4)", "qsgd(bits=4)", "qsgd(bits=4, coding=packed)"),
    *("qsgd(levels=16)", "qsgd(levels=127)", "qsgd(bits=8, coding=packed)"),
    *("terngrad", "terngrad(clip=0)", "terngrad(coding=packed)", "natural"),
    *("natural(coding=packed)", "signsgd", "efsignsgd", "onebit"),
]
WIDTHS = (64, 128, 256, 512)


def resnet18_shapes() -> list[tuple[int, ...]]:
    """Returns the shapes of the weights with two dimensions or more."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3)]
    inputs = 64
    for width in WIDTHS:
        shapes += [(width, inputs, 3, 3), *[(width, width, 3, 3)] * 3]
        shapes += [(width, inputs, 1, 1)] if width != inputs else []
        inputs = width
    return [*shapes, (10, 512)]


def random_gradients() -> list[Tensor]:
    """Returns Gaussian gradients; the scale of a layer decreases with its size, as in training."""
    generator = Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator) / math.sqrt(math.prod(shape))
        for shape in resnet18_shapes()
    ]


def least(runs: list[Callable[[], object]], repetitions: int) -> list[float]:
    """Returns the shortest time of each run, in seconds; the runs take turns."""
    best = [math.inf] * len(runs)
    for _ in range(repetitions):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def entropy_of(codec: Codec[Any], payloads: list[Any], gradients: list[Tensor]) -> float:
    """Returns the bits per entry of the distribution of decoded symbols of all layers."""
    symbols = []
    for payload, gradient in zip(payloads, gradients, strict=True):
        decoded = codec.decode(payload, gradient.shape).flatten()
        if isinstance(codec, QSGD):
            units = payload.norms.repeat_interleave(codec.bucket(len(decoded)))[: len(decoded)]
            decoded = (decoded * codec.highest_level / units.clamp(min=1e-38)).round()
        elif codec.id != "natural":
            decoded = decoded.sign()
        symbols.append(decoded)
    _, counts = np.unique(torch.cat(symbols).numpy(), return_counts=True)
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())


def report(codec: Codec[Any], gradients: list[Tensor], repetitions: int) -> None:
    """Prints the line of one codec."""
    if codec.default_granularity is Granularity.ENTRIES:
        gradients = [torch.cat([gradient.flatten() for gradient in gradients])]
    else:
        gradients = [gradient for gradient in gradients if gradient.ndim > 1]
    floats, generator = sum(g.numel() for g in gradients), Generator().manual_seed(1)
    copies = [torch.empty_like(g) for g in gradients]
    sums = [torch.zeros_like(g) for g in gradients]
    residuals = [torch.zeros_like(g) for g in gradients]
    payloads = [codec.encode(g, generator) for g in gradients]
    runs: list[Callable[[], object]] = [
        lambda: [c.copy_(g) for c, g in zip(copies, gradients, strict=True)],
        lambda: [codec.encode(g, generator) for g in gradients],
        lambda: [codec.add_decoded(p, s) for p, s in zip(payloads, sums, strict=True)],
    ]
    if Law.CONTRACTION in codec.laws:
        residual_pairs = list(zip(gradients, residuals, strict=True))
        runs.append(lambda: [codec.encode_residual(g, k, generator) for g, k in residual_pairs])
    copy, encode, add, *residual = least(runs, repetitions)
    sizes = [
        (tensor.numel() * tensor.element_size() * 8 / floats, tensor.dtype == torch.float32)
        for payload in payloads
        for tensor in codec.sections(payload)
    ]
    bits, scales = (
        sum(size for size, scale in sizes if scale is is_scale) for is_scale in (False, True)
    )
    bound = entropy_of(codec, payloads, gradients)
    shown = f"{residual[0] / copy:9.2f}" if residual else f"{'':9}"
    print(
        f"{codec!s:30}{encode / copy:8.2f}{shown}{add / copy:7.2f}{bits:9.4f}{scales:8.4f}"
        f"{bound:9.4f}{bits / bound:7.3f}"
    )


def main() -> None:
    """Measures the codecs, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--codec", nargs="+", default=CODECS)
    parser.add_argument("--tensor", type=Path, help="named gradients in safetensors")
    parser.add_argument("--repetitions", type=int, default=9)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    gradients = list(load_file(settings.tensor).values()) if settings.tensor else random_gradients()
    print(f"{'':30}{'encode':>8}{'residual':>9}{'add':>7}{'bits':>9}{'scales':>8}", end="")
    print(f"{'entropy':>9}{'ratio':>7}")
    for spec in settings.codec:
        report(make_codec(spec), gradients, settings.repetitions)


if __name__ == "__main__":
    main()
