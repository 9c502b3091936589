"""Scaling of encoding with the threads of a worker, which compress buckets in parallel.

    python benchmarks/threads.py --tensor gradient.safetensors --threads 1 2 4

The figure is the shortest time of several repetitions, in milliseconds, from flat gradients to
frames, including the memory. It shows the effect of `--threads` on a worker with buckets of
`--fusion-mb`.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from atomo.codecs import make_codec
from atomo.core.process.allocator import keep_freed_memory
from atomo.exchange import Compressor
from atomo.exchange.engine.stages import one_thread
from atomo.fusion import plan
from atomo.memory import default_memory, make_memory
from atomo.options.grouping import megabytes
from atomo.wire import Compression
from parts.codecs_common import find_gradient

SPECS = ("svd(rank=3)", "topk(ratio=0.01)", "dgc", "qsgd(bits=4)", "efsignsgd")
MB = 2**20


def main() -> None:
    """Prints one row for each codec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=Path, help="gradient as safetensors; written if missing")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--random", type=int, default=0, help="entries of a random gradient")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--fusion-mb", type=float, default=4.0)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--code", nargs="*", default=SPECS)
    options = parser.parse_args()
    keep_freed_memory()  # as the ranks of a job do
    torch.set_num_threads(1)
    gradient = find_gradient(options.tensor, options.data_dir, options.random)
    print("| codec | buckets |" + "".join(f" {n} threads |" for n in options.threads))
    print("|---|---|" + "---|" * len(options.threads))
    for spec in options.code:
        codec = make_codec(spec)
        shapes = [(name, tensor.shape) for name, tensor in gradient.items()]
        buckets = plan(shapes, codec, megabytes(options.fusion_mb))
        flats = [torch.cat([gradient[s.name].flatten() for s in b.slots]) for b in buckets]
        work = list(zip(buckets, flats, strict=True))
        times = [best(spec, work, n, options.repetitions) for n in options.threads]
        print(f"| `{spec}` | {len(buckets)} |" + "".join(f" {1e3 * t:.1f} ms |" for t in times))


def best(spec: str, work: list, threads: int, repetitions: int) -> float:  # type: ignore[type-arg]
    """Returns the shortest time for all buckets, seconds."""
    memory = make_memory(default_memory(make_codec(spec)))
    compressor = Compressor(memory, Compression(), worker=1, seed=0)
    shortest = float("inf")
    with ThreadPoolExecutor(threads, "encode", one_thread) as pool:
        for step in range(repetitions):
            started = time.perf_counter()
            tasks = [pool.submit(compressor.compress, bucket, flat, step) for bucket, flat in work]
            for task in tasks:
                task.result()
            shortest = min(shortest, time.perf_counter() - started)
    return shortest


if __name__ == "__main__":
    main()
