"""Kernels at the speed of the memory they run on: each against a measured copy of the same floats.

python benchmarks/gpu.py                       on a GPU
python benchmarks/gpu.py --entries 1000000000  a larger gradient
TRITON_INTERPRET=1 python benchmarks/gpu.py --entries 5000 --device cpu    what runs, without a GPU

Triton's results are compared with numba's on the CPU before anything is timed. Times are medians of
CUDA events; bandwidth counts each byte that must be read or written once. Without a GPU every row
runs, and no time is printed.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import ModuleType

import torch
from gpu_steps import layers, power_iteration, spectral, spectral_alone, steps
from torch import Generator, Tensor

from atomo.kernels import rice, select
from atomo.kernels.momentum import numba_way as numba_momentum
from atomo.kernels.momentum import torch_way as torch_momentum
from atomo.kernels.momentum import triton_way as triton_momentum
from atomo.kernels.powers import numba_way as numba_powers
from atomo.kernels.powers import torch_way as torch_powers
from atomo.kernels.powers import triton_way as triton_powers
from atomo.kernels.quantise import COLUMNS, EUCLIDEAN, FORMS, GIVEN
from atomo.kernels.quantise import numba_way as numba_levels
from atomo.kernels.quantise import torch_way as torch_levels
from atomo.kernels.quantise import triton_way as triton_levels
from atomo.kernels.rice import triton_way as triton_rice
from atomo.kernels.rows import stacked
from atomo.kernels.select import numba_way as numba_select
from atomo.kernels.select import torch_way as torch_select
from atomo.kernels.select import triton_way as triton_select
from atomo.kernels.sign import numba_way, torch_way, triton_way

REPEATS = 20
WARM_UPS = 3
FRAMES = 8
FORM, MOST, SEED = FORMS[1], 7, 11
LOW = select.bits_of(3.3)  # about 0.1 % of normal entries are above


@dataclass(frozen=True)
class Case:
    """Something to time, and the fewest bytes an entry that it must move; 0: it is no one pass."""

    name: str
    bytes_per_entry: float
    run: Callable[[], object]


def normal(entries: int, seed: int) -> Tensor:
    """Entries of a gradient."""
    return torch.randn(entries, generator=Generator().manual_seed(seed))


def few(entries: int, share: float) -> int:
    return max(1, int(entries * share))


def check_signs(kept: Tensor, gradient: Tensor, device: str) -> None:
    """Raises AssertionError where Triton's results are not numba's; so do the others."""
    there, kept = kept.to(device, copy=True), kept.clone()
    words, *sums = numba_way.add_pack_sum(kept, gradient)
    found, *others = triton_way.add_pack_sum(there, gradient.to(device))
    assert found.cpu().equal(words), "the words differ"
    assert there.cpu().equal(kept), "the sums of the entries differ"
    torch.testing.assert_close(others, sums, rtol=1e-9, atol=1e-6)
    numba_way.add_signs(words, -0.5, 0.5, kept)
    triton_way.add_signs(found, -0.5, 0.5, there)
    assert there.cpu().equal(kept), "what is kept differs"


def check_levels(values: Tensor, device: str) -> None:
    norms = torch.empty(-(-len(values) // COLUMNS))
    packed = numba_levels.quantise(values, norms, COLUMNS, EUCLIDEAN, MOST, FORM, SEED)
    arguments = values.to(device), norms.to(device), COLUMNS, GIVEN, MOST, FORM, SEED
    found = triton_levels.quantise(*arguments)
    assert packed is not None
    assert found is not None
    assert found[0].cpu().equal(packed[0]), "the levels differ"
    assert found[1].cpu().equal(packed[1]), "the levels that escape differ"


def check_powers(values: Tensor, device: str) -> None:
    symbols, words, largest = numba_powers.pack_powers(values, SEED)
    there, signs, most = triton_powers.pack_powers(values.to(device), SEED)
    assert there.cpu().equal(symbols), "the exponents differ"
    assert signs.cpu().equal(words), "the signs of the powers differ"
    assert most == largest, "the largest magnitudes differ"


def check_momentum(values: Tensor, added: Tensor, device: str) -> None:
    here = values.clone(), added.clone()
    there = [one.to(device, copy=True) for one in here]
    expected = numba_momentum.grow_above(*here, values, 0.9, False, LOW)
    found = triton_momentum.grow_above(there[0], there[1], values.to(device), 0.9, False, LOW)
    for one, other in zip((*there, *found), (*here, *expected), strict=True):
        assert one.cpu().equal(other), "momentum or what is above differs"


def check_selection(values: Tensor, added: Tensor, device: str) -> None:
    k = few(len(values), 0.001)
    there = values.to(device, copy=True)
    indices, found = triton_select.largest(there, added.to(device), k)
    expected, entries = numba_select.largest(values.clone(), added, k)
    assert indices.cpu().equal(expected), "the largest entries differ"
    assert found.cpu().equal(entries), "the values of the largest entries differ"
    packed = triton_rice.pack(indices, rice.most_bytes(len(values), k))
    assert packed.equal(rice.encode(expected, len(values))), "the codes of the indices differ"


def frames(entries: int, device: str) -> tuple[Tensor, Tensor, list[int]]:
    """The indices and the values of some frames at 1 %."""
    count = few(entries, 0.01)
    numbers = [torch.randint(entries, (count,), generator=Generator().manual_seed(seed))
               for seed in range(FRAMES)]  # fmt: skip
    drawn: list[Tensor] = [one.unique() for one in numbers]  # type: ignore[no-untyped-call]
    indices = torch.cat(drawn)
    return indices.to(device), normal(len(indices), 5).to(device), [len(one) for one in drawn]


def rows_of(
    words: Tensor, packed: tuple[Tensor, Tensor], norms: Tensor, exponents: Tensor
) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    """Signs, symbols, escapes, norms and exponents of as many workers, with the same in each."""
    signs, symbols, units, powers = (
        stacked([part] * FRAMES, part.device) for part in (words, packed[0], norms, exponents)
    )
    return signs, symbols, [packed[1]] * FRAMES, units, powers


def check_frames(values: Tensor, device: str) -> None:
    words = [numba_way.pack_signs(part)[0] for part in (values, -values, values.flip(0))]
    expected, out = torch.zeros(len(values)), torch.zeros(len(values), device=device)
    numba_way.add_all_signs(stacked(words, expected.device), [0.1, 0.2, 0.3], expected)
    rows = stacked(words, out.device)
    triton_way.add_all_signs(rows, [0.1, 0.2, 0.3], out)
    assert out.cpu().equal(expected), "the sums of several frames differ"


def cases(entries: int, device: str) -> list[Case]:
    """What is timed, on a GPU."""
    kept, gradient = (normal(entries, seed).to(device) for seed in (1, 2))
    other, words = torch.empty_like(kept), triton_way.pack_signs(kept)[0]
    norms = kept.new_empty(-(-entries // COLUMNS))
    coded = kept, norms, COLUMNS, EUCLIDEAN, MOST, FORM, SEED
    packed = triton_levels.quantise(*coded)
    assert packed is not None
    sets, k = frames(entries, device), few(entries, 0.001)
    share = len(sets[0]) / entries
    indices, _ = triton_select.largest(kept, None, k)
    sized = rice.most_bytes(entries, k)
    found = [Case("copy", 8.0, lambda: other.copy_(kept))]

    exponents, negative, _ = triton_powers.pack_powers(kept, SEED)
    several = rows_of(words, packed, norms, exponents)
    speed = torch.zeros_like(kept)

    def add(
        name: str,
        sign: ModuleType,
        level: ModuleType,
        power: ModuleType,
        pick: ModuleType,
        push: ModuleType,
    ) -> None:
        rows: list[tuple[str, float, Callable[[], object]]] = [
            ("signs packed", 4.125, lambda: sign.pack_signs(kept)),
            ("added, packed, summed", 12.125, lambda: sign.add_pack_sum(kept, gradient)),
            ("signs added", 8.125, lambda: sign.add_signs(words, -0.5, 0.5, kept)),
            ("levels packed", 4.5, lambda: level.quantise(*coded)),
            ("levels added", 8.5,
             lambda: level.add_levels(*packed, norms, COLUMNS, MOST, FORM, other, 0.1)),
            ("powers and signs packed", 5.125, lambda: power.pack_powers(kept, SEED)),
            ("powers added", 9.125, lambda: power.add_powers(exponents, negative, other, 0.1)),
            ("DGC's momentum, and above", 20.0,
             lambda: push.grow_above(kept, speed, gradient, 0.5, False, LOW)),
            ("above, with residual", 12.0, lambda: pick.above(kept, gradient, LOW)),
            ("top-k 0.1 %, residual", 12.0, lambda: pick.largest(kept, gradient, k)),
            ("top-k 0.1 %", 4.0, lambda: pick.largest(kept, None, k)),
            ("8 frames of 1 % added", 20 * share, lambda: pick.add_sets(other, *sets, 0.1)),
            ("8 frames of signs added", 9.0,
             lambda: sign.add_all_signs(several[0], [0.1] * FRAMES, other)),
            ("8 frames of levels added", 12.1,
             lambda: level.add_all_levels(*several[1:4], COLUMNS, MOST, FORM, other, 0.1)),
            ("8 frames of powers added", 17.0,
             lambda: power.add_all_powers(several[4], several[0], other, [0.1] * FRAMES)),
        ]  # fmt: skip
        found.extend(Case(f"{name}: {what}", size, run) for what, size, run in rows)

    add("triton", triton_way, triton_levels, triton_powers, triton_select, triton_momentum)
    add("torch", torch_way, torch_levels, torch_powers, torch_select, torch_momentum)
    found.append(Case("torch.topk of magnitudes", 4.0, lambda: kept.abs().topk(k)))
    found.append(Case("triton: indices coded", 0.0, lambda: triton_rice.pack(indices, sized)))
    shapes = layers(device)
    found.append(Case("svd(rank=3) of all layers", 0.0, spectral(shapes)))
    found.append(Case("the same, layer by layer", 0.0, spectral_alone(shapes)))
    found.append(Case("PowerSGD's products, rank 4", 0.0, power_iteration(shapes)))
    return found + [Case(name, 0.0, run) for name, run in steps(device)]


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
    for case in cases(entries, "cuda"):
        taken = milliseconds(case.run)
        speed = case.bytes_per_entry * entries / taken / 1e9
        copied = copied or speed
        print(f"{case.name:34}{taken:9.3f}", end="")
        print(f"{speed:8.2f}{speed / copied:9.0%}" if speed else "")


def rehearse(entries: int) -> None:
    """Runs each case once, where there is nothing to time."""
    for case in cases(entries, "cpu"):
        case.run()
        print(f"{case.name:34}{'runs':>9}")
    print("No GPU: nothing is timed.")


def main() -> None:
    """Checks, then measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=25_600_000)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu with TRITON_INTERPRET=1 checks without one")
    checked = min(options.entries, 10_000_019)
    kept, gradient = normal(checked, 1), normal(checked, 2)
    check_signs(kept, gradient, options.device)
    check_levels(gradient, options.device)
    check_powers(gradient, options.device)
    check_momentum(kept, gradient, options.device)
    check_selection(kept, gradient, options.device)
    check_frames(gradient, options.device)
    print("Triton's results are numba's.")
    (report if options.device == "cuda" else rehearse)(options.entries)


if __name__ == "__main__":
    main()
