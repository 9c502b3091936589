"""Bandwidth of the kernels, compared with a measured copy of the same floats.

python benchmarks/gpu.py                          on a GPU: 25.6 M floats, then 1 G python
benchmarks/gpu.py --entries 25600000       only this size TRITON_INTERPRET=1 python
benchmarks/gpu.py --entries 5000 --device cpu    without a GPU: each row runs

The script first compares Triton's results with numba's on the CPU. Times are medians of CUDA
events; bandwidth counts each byte that must be read or written once. If a row fails, the script
prints the error, continues with the next row, and ends with exit code 1. Without a GPU every row
runs, and no time is printed.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from types import ModuleType

import torch
from torch import Generator, Tensor

from atomo.kernels import rice
from atomo.kernels.momentum import cuda as triton_momentum
from atomo.kernels.momentum import reference as torch_momentum
from atomo.kernels.powers import cuda as triton_powers
from atomo.kernels.powers import reference as torch_powers
from atomo.kernels.quantise import COLUMNS, EUCLIDEAN
from atomo.kernels.quantise import cuda as triton_levels
from atomo.kernels.quantise import reference as torch_levels
from atomo.kernels.rice import cuda as triton_rice
from atomo.kernels.rows import stacked
from atomo.kernels.selection import cuda as triton_select
from atomo.kernels.selection import reference as torch_select
from atomo.kernels.sign import cuda, reference
from parts.gpu.checks import FORM, LOW, MOST, SEED, checked, few, normal
from parts.gpu.codes import code_rows
from parts.gpu.steps import PLAIN, layers, power_iteration, spectral, spectral_alone, steps

REPEATS = 20
WARM_UPS = 3
FRAMES = 8
TOPK = "torch.topk of magnitudes"
PRODUCTS = "PowerSGD's products, rank 4"


@dataclass(frozen=True)
class Case:
    """A kernel to time."""

    name: str
    bytes_per_entry: float
    """Minimum bytes to move for each entry; 0 if the kernel is no single pass."""
    run: Callable[[], object]
    beside: str = ""
    """Name of an earlier row to compare the time with; empty: none."""


def frames(entries: int, device: str) -> tuple[Tensor, Tensor, list[int]]:
    """Returns the indices, the values and the lengths of frames at 1 %."""
    count = few(entries, 0.01)
    numbers = [torch.randint(entries, (count,), generator=Generator().manual_seed(seed))
               for seed in range(FRAMES)]  # fmt: skip
    drawn: list[Tensor] = [places.unique() for places in numbers]  # type: ignore[no-untyped-call]
    indices = torch.cat(drawn)
    lengths = [len(places) for places in drawn]
    return indices.to(device), normal(len(indices), 5).to(device), lengths


def rows_of(
    words: Tensor, packed: tuple[Tensor, Tensor], norms: Tensor, exponents: Tensor
) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    """Returns signs, symbols, escapes, norms and exponents of FRAMES workers, equal for each."""
    signs, symbols, units, powers = (
        stacked([part] * FRAMES, part.device) for part in (words, packed[0], norms, exponents)
    )
    return signs, symbols, [packed[1]] * FRAMES, units, powers


def kernels(entries: int, device: str) -> Iterator[Case]:
    """Yields all cases for a gradient of `entries` entries."""
    residual, gradient = (normal(entries, seed).to(device) for seed in (1, 2))
    out, words = torch.empty_like(residual), cuda.pack_signs(residual)[0]
    norms = residual.new_empty(-(-entries // COLUMNS))
    coded = residual, norms, COLUMNS, EUCLIDEAN, MOST, FORM, SEED
    packed = triton_levels.quantise(*coded)
    assert packed is not None
    sets, k = frames(entries, device), few(entries, 0.001)
    share = len(sets[0]) / entries
    indices, _ = triton_select.largest(residual, None, k)
    sized = rice.most_bytes(entries, k)
    exponents, negative, _ = triton_powers.pack_powers(residual, SEED)
    several = rows_of(words, packed, norms, exponents)
    speed = torch.zeros_like(residual)

    def both(
        name: str,
        sign: ModuleType,
        level: ModuleType,
        power: ModuleType,
        pick: ModuleType,
        push: ModuleType,
    ) -> Iterator[Case]:
        rows: list[tuple[str, float, Callable[[], object]]] = [
            ("signs packed", 4.125, lambda: sign.pack_signs(residual)),
            ("added, packed, summed", 12.125, lambda: sign.add_pack_sum(residual, gradient)),
            ("signs added", 8.125, lambda: sign.add_signs(words, -0.5, 0.5, residual)),
            ("levels packed", 4.5, lambda: level.quantise(*coded)),
            ("levels added", 8.5,
             lambda: level.add_levels(*packed, norms, COLUMNS, MOST, FORM, out, 0.1)),
            ("powers and signs packed", 5.125, lambda: power.pack_powers(residual, SEED)),
            ("powers added", 9.125, lambda: power.add_powers(exponents, negative, out, 0.1)),
            ("DGC's momentum, and above", 20.0,
             lambda: push.grow_above(residual, speed, gradient, 0.5, False, LOW)),
            ("above, with residual", 12.0, lambda: pick.above(residual, gradient, LOW)),
            ("top-k 0.1 %, residual", 12.0, lambda: pick.largest(residual, gradient, k)),
            ("top-k 0.1 %", 4.0, lambda: pick.largest(residual, None, k)),
            ("8 frames of 1 % added", 20 * share, lambda: pick.add_sets(out, *sets, 0.1)),
            ("8 frames of signs added", 9.0,
             lambda: sign.add_all_signs(several[0], [0.1] * FRAMES, out)),
            ("8 frames of levels added", 12.1,
             lambda: level.add_all_levels(*several[1:4], COLUMNS, MOST, FORM, out, 0.1)),
            ("8 frames of powers added", 17.0,
             lambda: power.add_all_powers(several[4], several[0], out, [0.1] * FRAMES)),
        ]  # fmt: skip
        yield from (Case(f"{name}: {kernel}", size, run) for kernel, size, run in rows)

    yield Case("copy", 8.0, lambda: out.copy_(residual))
    yield from both("triton", cuda, triton_levels, triton_powers, triton_select, triton_momentum)
    yield from both("torch", reference, torch_levels, torch_powers, torch_select, torch_momentum)
    yield Case(TOPK, 4.0, lambda: residual.abs().topk(k))
    yield Case("triton: indices coded", 0.0, lambda: triton_rice.pack(indices, sized))
    yield from (Case(*row) for row in code_rows(normal(entries, 1), device))


def networks(device: str) -> Iterator[Case]:
    """Yields the cases of a network: all its layers, and whole steps of its training."""
    shapes = layers(device)
    yield Case(PRODUCTS, 0.0, power_iteration(shapes))
    yield Case("svd(rank=3) of all layers", 0.0, spectral(shapes), PRODUCTS)
    yield Case("the same, layer by layer", 0.0, spectral_alone(shapes), PRODUCTS)
    for name, run in steps(device):
        yield Case(name, 0.0, run, "" if name == PLAIN else PLAIN)


def milliseconds(run: Callable[[], object]) -> float:
    """Returns the median time of several runs, milliseconds."""
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


def cases(entries: int, device: str, whole: bool) -> Iterator[Case]:
    """Yields the cases to time; networks are built after the kernels."""
    yield from kernels(entries, device)
    if whole:
        yield from networks(device)


def report(entries: int, whole: bool) -> bool:
    """Prints one row for each case; True if none failed."""
    print(f"{torch.cuda.get_device_name()}, {entries:,} floats")
    print(f"{'kernel':34}{'ms':>9}{'TB/s':>8}{'of copy':>9}")
    took = dict[str, float]()
    speeds = list[float]()

    def row(case: Case) -> str:
        time_ms = took[case.name] = milliseconds(case.run)
        if case.beside in took:
            return f"{time_ms:9.3f}{time_ms / took[case.beside]:17.2f} times {case.beside}"
        if not case.bytes_per_entry:
            return f"{time_ms:9.3f}"
        speeds.append(case.bytes_per_entry * entries / time_ms / 1e9)  # the first is the copy's
        return f"{time_ms:9.3f}{speeds[-1]:8.2f}{speeds[-1] / speeds[0]:9.0%}"

    return every(print_row(case, row) for case in cases(entries, "cuda", whole))


def every(rows: Iterable[bool]) -> bool:
    """True if all rows succeed; every row runs, even after a failure."""
    return min([*rows])


def print_row(case: Case, row: Callable[[Case], str]) -> bool:
    """Prints a row even if the case fails; True if the case succeeds."""
    try:
        print(f"{case.name:34}{row(case)}", flush=True)
    except Exception as error:
        print(f"{case.name:34}  failed: {type(error).__name__}: {str(error).splitlines()[:1]}")
        return False
    return True


def rehearse(entries: int, whole: bool) -> bool:
    """Runs each case once, without timing; True if all succeed."""

    def row(case: Case) -> str:
        case.run()
        return f"{'runs':>9}"

    well = every(print_row(case, row) for case in cases(entries, "cpu", whole))
    print("No GPU: nothing is timed.")
    return well


def main() -> int:
    """Checks the kernels, then measures; returns 1 if a check or a row fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, nargs="+", default=[25_600_000, 1_000_000_000])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu with TRITON_INTERPRET=1 checks without one")
    well = checked(min([*options.entries, 10_000_019]), options.device)
    print(
        "Triton's results are numba's." if well else "The figures below are those of wrong kernels."
    )
    measure = report if options.device == "cuda" else rehearse
    for place, entries in enumerate(options.entries):
        well = measure(entries, place == 0) and well
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
