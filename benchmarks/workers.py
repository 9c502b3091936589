"""Time of the master for each additional worker, from 2 to 64 workers.

    python benchmarks/workers.py --png docs/results-workers.png

All workers are transports of this process, and their frames arrive before the timing starts. The
script times `collect` of the master, from the first frame to the mean. The figure is the shortest
thread time of several, so that other load on the machine has little effect. There is a column for
each number of workers; the last is the slope of a line through the times, relative to the time to
decode a dense gradient.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from atomo.codecs import make_codec
from atomo.core.plotting import pyplot_for
from atomo.core.process.allocator import keep_freed_memory
from atomo.exchange import Compressor, Report, Server
from atomo.fusion import Bucket, named_slices, plan, shapes
from atomo.memory import make_memory
from atomo.options.grouping import megabytes
from atomo.transports import network as ranks
from atomo.wire import Bytes, Compression, Header, Kind, pack
from atomo.workloads.models import build_model

CODES: Final = ("dgc(ratio=0.001)", "svd(rank=3)", "svd(rank=3, matricisation=filters)")
WORKERS: Final = (2, 4, 8, 16, 32, 64)
TIMEOUT_S: Final = 60.0
BUCKET_MB: Final = 4.0
DISTINCT: Final = 4  # number of different gradients


def main() -> None:
    """Measures the master, prints the table, and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codes", nargs="*", default=CODES)
    parser.add_argument("--network", default="ResNet18")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every process of a run does
    dense = dense_decode(options.network, options.times)
    print(f"one more worker with a dense gradient of {options.network}: {1e3 * dense:.2f} ms\n")
    print(f"| code | {' | '.join(map(str, WORKERS))} | each additional worker, of a dense decode |")
    print(f"|---|{'---|' * (len(WORKERS) + 1)}", flush=True)
    curves = {}
    for code in options.codes:
        buckets = buckets_of(options.network, code)
        frames = frames_of(buckets, WORKERS[-1])
        curves[code] = [master_s(buckets, frames[:count], options.times) for count in WORKERS]
        slope = statistics.linear_regression(WORKERS, curves[code]).slope
        cells = " | ".join(f"{1e3 * seconds:.1f}" for seconds in curves[code])
        print(f"| `{code}`, ms | {cells} | {slope / dense:.1%} |", flush=True)
    if options.png:
        draw(curves, options.png)


def buckets_of(network: str, code: str) -> tuple[Bucket, ...]:
    """Returns the buckets of a network for a codec."""
    return plan(
        shapes(build_model(network, (3, 32, 32), 10)),
        make_codec(code),
        megabytes(BUCKET_MB),
    )


def gradient_of(buckets: Sequence[Bucket], number: int) -> Tensor:
    """Returns a flat gradient; layers are of low rank plus noise, as in training."""
    generator = torch.Generator().manual_seed(number)
    flat = 0.01 * torch.randn(sum(bucket.size for bucket in buckets), generator=generator)
    for _, view in named_slices(flat, buckets):
        rows = view.view(len(view), -1)
        if min(rows.shape) > 1:
            factor = torch.randn(len(rows), 2, generator=generator)
            rows.add_(factor @ torch.randn(2, rows.shape[1], generator=generator))
    return flat


def frames_of(buckets: Sequence[Bucket], workers: int) -> list[list[Bytes]]:
    """Builds the frames of each worker in a step: its buckets and its report."""
    gradients = [gradient_of(buckets, number) for number in range(DISTINCT)]
    raw, report = Compression(codec="none"), Report(1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0).tensor()
    made = []
    for worker in range(1, workers + 1):
        compressor = Compressor(make_memory("none"), Compression(), worker, seed=1)
        flat = gradients[worker % DISTINCT].clone()
        split = torch.split(flat, [bucket.size for bucket in buckets])
        frames = [compressor.compress(*pair, 1) for pair in zip(buckets, split, strict=True)]
        made.append([*frames, pack(Header(Kind.REPORT, 1, worker), [report], raw)])
    return made


def master_s(buckets: Sequence[Bucket], frames: Sequence[Sequence[Bytes]], times: int) -> float:
    """Returns the shortest time of a step of the master after the arrival of all frames."""
    out = torch.zeros(sum(bucket.size for bucket in buckets))
    measured = []
    for _ in range(times + 1):  # the first includes compilation and page faults
        ends = ranks(len(frames) + 1)
        server = Server(ends[0], buckets, len(frames), TIMEOUT_S)
        server.broadcast(1, out)
        for end, sent in zip(ends[1:], frames, strict=True):
            for frame in sent:
                end.send(0, frame, "a gradient")
        started = time.thread_time()
        server.collect(out)
        measured.append(time.thread_time() - started)
    return min(measured[1:])


def dense_decode(network: str, times: int) -> float:
    """Returns the time of the master for each additional worker with a dense gradient."""
    buckets = buckets_of(network, "sgd")
    frames = frames_of(buckets, 3)
    return (master_s(buckets, frames, times) - master_s(buckets, frames[:1], times)) / 2


def draw(curves: Mapping[str, Sequence[float]], png: Path) -> None:
    """Draws milliseconds over the number of workers."""
    pyplot = pyplot_for(str(png))
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for code, seconds in curves.items():
        axis.plot(WORKERS, [1e3 * second for second in seconds], marker=".", label=code)
    axis.set(xlabel="workers", ylabel="ms of the master a step", xlim=(0, None), ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(png, dpi=100)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
