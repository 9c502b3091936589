"""Kernels at the speed of the memory they run on: signs against a measured copy of the same floats.

python benchmarks/gpu.py                       on a GPU
python benchmarks/gpu.py --entries 1000000000  a larger gradient
TRITON_INTERPRET=1 python benchmarks/gpu.py --entries 5000 --device cpu    what runs, without a GPU

Every result is compared with numba's on the CPU before it is timed. Times are medians of CUDA
events; bandwidth counts each byte that must be read or written once. In the interpreter nothing is
timed.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Generator, Tensor

from atomo.kernels.sign import numba_way, torch_way, triton_way

REPEATS = 20
WARM_UPS = 3


@dataclass(frozen=True)
class Case:
    """Something to time, and the fewest bytes an entry that it must move."""

    name: str
    bytes_per_entry: float
    run: Callable[[], object]


def normal(entries: int, seed: int) -> Tensor:
    """Entries of a gradient."""
    return torch.randn(entries, generator=Generator().manual_seed(seed))


def check(entries: int, device: str) -> None:
    """Raises AssertionError where Triton's results are not numba's."""
    kept, gradient = normal(entries, 1), normal(entries, 2)
    there, added = kept.clone().to(device), gradient.to(device)
    words, *sums = numba_way.add_pack_sum(kept, gradient)
    found, *others = triton_way.add_pack_sum(there, added)
    assert found.cpu().equal(words), "the words differ"
    assert there.cpu().equal(kept), "the sums of the entries differ"
    torch.testing.assert_close(others, sums, rtol=1e-9, atol=1e-6)
    numba_way.add_signs(words, -0.5, 0.5, kept)
    triton_way.add_signs(found, -0.5, 0.5, there)
    assert there.cpu().equal(kept), "what is kept differs"


def cases(entries: int) -> list[Case]:
    """What is timed, on the GPU."""
    kept, gradient = (normal(entries, seed).cuda() for seed in (1, 2))
    other, words = torch.empty_like(kept), triton_way.pack_signs(kept)[0]
    both = [
        Case(f"{name}: {what}", size, run)
        for name, way in (("triton", triton_way), ("torch", torch_way))
        for what, size, run in (
            ("signs packed", 4.125, lambda way=way: way.pack_signs(kept)),
            ("added, packed, summed", 12.125, lambda way=way: way.add_pack_sum(kept, gradient)),
            ("signs added", 8.125, lambda way=way: way.add_signs(words, -0.5, 0.5, kept)),
        )
    ]
    return [Case("copy", 8.0, lambda: other.copy_(kept)), *both]


def milliseconds(run: Callable[[], object]) -> float:
    """The median of several runs."""
    for _ in range(WARM_UPS):
        run()
    times = []
    for _ in range(REPEATS):
        start, stop = (torch.cuda.Event(True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(stop)))
    return median(times)


def report(entries: int) -> None:
    """One row for each case."""
    print(f"{torch.cuda.get_device_name()}, {entries:,} floats")
    print(f"{'what':34}{'ms':>9}{'TB/s':>8}{'of copy':>9}")
    copied = 0.0
    for case in cases(entries):
        taken = milliseconds(case.run)
        speed = case.bytes_per_entry * entries / taken / 1e9
        copied = copied or speed
        print(f"{case.name:34}{taken:9.3f}{speed:8.2f}{speed / copied:9.0%}")


def main() -> None:
    """Checks, then measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=25_600_000)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu with TRITON_INTERPRET=1 checks without one")
    check(min(options.entries, 10_000_019), options.device)
    print("Triton's results are numba's.")
    if options.device == "cuda":
        report(options.entries)
    else:
        print("No GPU: nothing is timed.")


if __name__ == "__main__":
    main()
