"""Equality of Triton's and numba's kernels, checked before `gpu.py` times them."""

from collections.abc import Callable

import torch
from gpu_codes import check_codes
from torch import Generator, Tensor

from atomo.kernels import rice
from atomo.kernels import selection as select
from atomo.kernels.momentum import cpu as numba_momentum
from atomo.kernels.momentum import cuda as triton_momentum
from atomo.kernels.powers import cpu as numba_powers
from atomo.kernels.powers import cuda as triton_powers
from atomo.kernels.quantise import COLUMNS, EUCLIDEAN, FORMS, GIVEN
from atomo.kernels.quantise import cpu as numba_levels
from atomo.kernels.quantise import cuda as triton_levels
from atomo.kernels.rice import cuda as triton_rice
from atomo.kernels.rows import stacked
from atomo.kernels.selection import cpu as numba_select
from atomo.kernels.selection import cuda as triton_select
from atomo.kernels.sign import cpu, cuda

__all__ = ["FORM", "LOW", "MOST", "SEED", "checked", "few", "normal"]

FORM, MOST, SEED = FORMS[1], 7, 11
LOW = select.bits_of(3.3)  # about 0.1 % of normal entries are above


def normal(entries: int, seed: int) -> Tensor:
    """Entries of a gradient."""
    return torch.randn(entries, generator=Generator().manual_seed(seed))


def few(entries: int, share: float) -> int:
    return max(1, int(entries * share))


def check_signs(kept: Tensor, gradient: Tensor, device: str) -> None:
    """Raises AssertionError where Triton's results are not numba's; so do the others."""
    there, kept = kept.to(device, copy=True), kept.clone()
    words, *sums = cpu.add_pack_sum(kept, gradient)
    found, *others = cuda.add_pack_sum(there, gradient.to(device))
    assert found.cpu().equal(words), "the words differ"
    assert there.cpu().equal(kept), "the sums of the entries differ"
    torch.testing.assert_close(others, sums, rtol=1e-9, atol=1e-6)
    cpu.add_signs(words, -0.5, 0.5, kept)
    cuda.add_signs(found, -0.5, 0.5, there)
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


def check_frames(values: Tensor, device: str) -> None:
    words = [cpu.pack_signs(part)[0] for part in (values, -values, values.flip(0))]
    expected, out = torch.zeros(len(values)), torch.zeros(len(values), device=device)
    cpu.add_all_signs(stacked(words, expected.device), [0.1, 0.2, 0.3], expected)
    rows = stacked(words, out.device)
    cuda.add_all_signs(rows, [0.1, 0.2, 0.3], out)
    assert out.cpu().equal(expected), "the sums of several frames differ"


def checked(entries: int, device: str) -> bool:
    """True if Triton's results are numba's; says where they are not."""
    kept, gradient = normal(entries, 1), normal(entries, 2)
    checks: list[Callable[[], None]] = [
        lambda: check_signs(kept, gradient, device),
        lambda: check_levels(gradient, device),
        lambda: check_powers(gradient, device),
        lambda: check_momentum(kept, gradient, device),
        lambda: check_selection(kept, gradient, device),
        lambda: check_frames(gradient, device),
        lambda: check_codes(gradient, device),
    ]
    found = [holds(check) for check in checks]
    return all(found)


def holds(check: Callable[[], None]) -> bool:
    """True if a check raises no error; prints the error otherwise."""
    try:
        check()
    except Exception as error:
        print(f"Triton differs from numba: {type(error).__name__}: {error}")
        return False
    return True
