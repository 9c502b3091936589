"""Speed and size of every codec, as ratios to a copy of the same gradient, on one thread.

    python benchmarks/codecs.py --data-dir data          a real gradient: ResNet18 on CIFAR-10
    python benchmarks/codecs.py --random 25600000        a random gradient of this size
    python benchmarks/codecs.py --png docs/codecs.png    with a picture

Each row is the whole path: memory, encoding, packing and checksum, and back. Similar operations of
PyTorch follow for comparison.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from atomo.analysis.measure import Measurement, copy_time, measure_codec, timed
from atomo.codecs import make_codec
from atomo.core.plotting import pyplot_for
from atomo.core.process.allocator import keep_freed_memory
from codecs_picture import Figures, draw
from parts.codecs_common import SPECS, find_gradient


def main() -> None:
    """Prints one row for each codec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=Path, help="gradient as safetensors; written if missing")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--random", type=int, default=0, help="entries of a random gradient")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--code", nargs="*", default=SPECS)
    parser.add_argument("--png", type=Path, help="file for a picture")
    options = parser.parse_args()
    pyplot = pyplot_for(str(options.png)) if options.png else None
    keep_freed_memory()  # as the ranks of a job do
    torch.set_num_threads(options.threads)
    gradient = find_gradient(options.tensor, options.data_dir, options.random)
    print("| codec | encode / copy | decode-add / copy | bits per entry | error |")
    print("|---|---|---|---|---|")
    measurements = []
    for spec in options.code:
        m = measure_codec(make_codec(spec), gradient, options.repetitions)
        measurements.append(m)
        print(
            f"| `{spec}` | {m.encode_ratio:.2f} | {m.decode_ratio:.3f} | {m.bits_per_entry:.4f} "
            f"| {m.relative_error:.3f} |",
            flush=True,
        )
    print_pytorch(gradient, options.repetitions)
    if pyplot is not None:
        draw(pyplot, [figures(measurement) for measurement in measurements], options.png)


def figures(measurement: Measurement) -> Figures:
    """Converts a measurement to the figures of the picture."""
    return Figures(
        measurement.spec,
        measurement.encode_ratio,
        measurement.decode_ratio,
        measurement.bits_per_entry,
        measurement.relative_error,
    )


def print_pytorch(gradient: dict[str, Tensor], repetitions: int) -> None:
    """Prints the times of PyTorch's operations."""
    flat = torch.cat([tensor.flatten() for tensor in gradient.values()])
    copy_s = copy_time(flat, repetitions)
    k = flat.numel() // 100
    operations: dict[str, Callable[[], object]] = {
        "torch.topk, 1 %": lambda: flat.abs().topk(k, sorted=False),
        "torch sign, a byte each": lambda: flat.sign().to(torch.int8),
        "torch half": lambda: flat.half(),
        "torch 4-bit QSGD, a byte each": lambda: torch_qsgd(flat, 15),
    }
    print(f"\na copy of {flat.numel():,} entries takes {1e3 * copy_s:.2f} ms; PyTorch's own:\n")
    for name, operation in operations.items():
        best = min(timed(operation) for _ in range(repetitions))
        print(f"- {name}: {best / copy_s:.1f} copies")


def torch_qsgd(flat: Tensor, levels: int) -> Tensor:
    """Computes QSGD in plain tensor operations, in buckets of 512."""
    buckets = flat[: flat.numel() // 512 * 512].view(-1, 512)
    scaled = buckets.abs() * (levels / buckets.norm(dim=1, keepdim=True).clamp_min(1e-30))
    rounded: Tensor = (scaled + torch.rand_like(scaled)).floor() * buckets.sign()
    return rounded.to(torch.int8)


if __name__ == "__main__":
    main()
