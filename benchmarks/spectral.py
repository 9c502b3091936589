"""Time of spectral ATOMO, compared with copies, PowerSGD and a singular value decomposition.

Times, on one thread and in turns, over all matrices of one gradient:

* copy      memcpy of the matrices: the unit of all ratios
* encode    `svd` from gradient to payload
* add       `svd` from payload into a sum
* lapack    torch.linalg.svd of the same matrices
* powersgd  a PowerSGD step as PyTorch's hook does it: P = M Q, orthogonalise, Q = M^T P, P Q^T

    python benchmarks/spectral.py [--codec "svd(rank=3)"] [--tensor FILE.safetensors]

Without a file, the matrices are those of a ResNet-18 for CIFAR (11.17 million floats), Gaussian
with columns scaled by 0.8^i over the pairs matricisation, so that the spectrum decays.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Generator, Tensor

from atomo.codecs import make_codec
from atomo.codecs.spectral.matricise import matrix_shapes

DECAY = 0.8
POWERSGD_RANK = 2


def resnet18_shapes() -> list[tuple[int, ...]]:
    """Returns the shapes of the weights with two dimensions or more; 41 parameters have one."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3)]
    inputs = 64
    for width in (64, 128, 256, 512):
        shapes += [(width, inputs, 3, 3), *[(width, width, 3, 3)] * 3]
        shapes += [(width, inputs, 1, 1)] if width != inputs else []
        inputs = width
    return [*shapes, (10, 512)]


def random_gradients(generator: Generator) -> list[Tensor]:
    """Returns a gradient for each weight, with a decaying spectrum."""
    gradients = []
    for shape in resnet18_shapes():
        gradient = torch.randn(shape, generator=generator)
        m, n = matrix_shapes(gradient.shape, "pairs")[0]
        # Not below 1e-2, as in real gradients: most of their mass is noise.
        scales = torch.pow(DECAY, torch.arange(n)).clamp(min=1e-2)
        gradients.append((gradient.view(m, n) * scales).view(shape))
    return gradients


def powersgd_step(matrix: Tensor, q: Tensor) -> Tensor:
    """Computes one worker's PowerSGD step for a matrix, without the reductions between workers."""
    p: Tensor = torch.linalg.qr(matrix @ q).Q
    return p @ (matrix.T @ p).T


def contestants(gradients: list[Tensor], spec: str) -> dict[str, Callable[[], object]]:
    """Returns the functions to time, by name."""
    codec, generator = make_codec(spec), torch.Generator().manual_seed(1)
    matrices = [g.view(matrix_shapes(g.shape, "pairs")[0]) for g in gradients]
    copies = [torch.empty_like(g) for g in gradients]
    payloads = [codec.encode(g, generator) for g in gradients]
    sums = [torch.zeros_like(g) for g in gradients]
    starts = [torch.randn(m.shape[1], POWERSGD_RANK, generator=generator) for m in matrices]
    pairs = list(zip(payloads, sums, strict=True))
    return {
        "copy": lambda: [c.copy_(g) for c, g in zip(copies, gradients, strict=True)],
        "encode": lambda: [codec.encode(g, generator) for g in gradients],
        "add": lambda: [codec.add_decoded(payload, total) for payload, total in pairs],
        "lapack": lambda: [torch.linalg.svd(m, full_matrices=False) for m in matrices],
        "powersgd": lambda: [powersgd_step(m, q) for m, q in zip(matrices, starts, strict=True)],
    }


def measure(run: Callable[[], object]) -> float:
    """Returns the milliseconds of one run."""
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Measures the codec, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--codec", default="svd(rank=3)")
    parser.add_argument("--tensor", type=Path, help="named gradients in safetensors")
    parser.add_argument("--repetitions", type=int, default=15)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    if settings.tensor:
        gradients = [g for g in load_file(settings.tensor).values() if g.ndim > 1]
    else:
        gradients = random_gradients(torch.Generator().manual_seed(0))
    report(contestants(gradients, settings.codec), gradients, settings.repetitions)


def report(
    runs: dict[str, Callable[[], object]], gradients: list[Tensor], repetitions: int
) -> None:
    """Times all functions in turns, so that other load affects all equally; prints the table."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            times[name].append(measure(run))
    print(f"{len(gradients)} matrices, {sum(g.numel() for g in gradients)} floats, one thread")
    print(f"{'':10}{'min ms':>9}{'median':>9}{'ratio of min':>14}{'of median':>11}")
    for name, column in times.items():
        columns = [(f(column), f(column) / f(times["copy"])) for f in (min, statistics.median)]
        (shortest, shortest_ratio), (median, median_ratio) = columns
        print(f"{name:10}{shortest:9.1f}{median:9.1f}{shortest_ratio:14.1f}{median_ratio:11.1f}")


if __name__ == "__main__":
    main()
