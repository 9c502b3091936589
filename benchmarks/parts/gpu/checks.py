"""Equality of Triton's and numba's kernels, checked before `gpu.py` times them."""

from collections.abc import Callable

import torch
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
from parts.gpu.codes import check_codes

__all__ = ["FORM", "LOW", "MOST", "SEED", "checked", "few", "normal"]

FORM, MOST, SEED = FORMS[1], 7, 11
LOW = select.bits_of(3.3)  # about 0.1 % of normal entries are above


def normal(entries: int, seed: int) -> Tensor:
    """Returns normal entries of a gradient."""
    return torch.randn(entries, generator=Generator().manual_seed(seed))


def few(entries: int, share: float) -> int:
    return max(1, int(entries * share))


def check_signs(residual: Tensor, gradient: Tensor, device: str) -> None:
    """Compares sign kernels; raises AssertionError if Triton's results differ from numba's."""
    device_residual, residual = residual.to(device, copy=True), residual.clone()
    words, *sums = cpu.add_pack_sum(residual, gradient)
    packed, *device_sums = cuda.add_pack_sum(device_residual, gradient.to(device))
    assert packed.cpu().equal(words), "the words differ"
    assert device_residual.cpu().equal(residual), "the sums of the entries differ"
    torch.testing.assert_close(device_sums, sums, rtol=1e-9, atol=1e-6)
    cpu.add_signs(words, -0.5, 0.5, residual)
    cuda.add_signs(packed, -0.5, 0.5, device_residual)
    assert device_residual.cpu().equal(residual), "the residuals differ"


def check_levels(values: Tensor, device: str) -> None:
    norms = torch.empty(-(-len(values) // COLUMNS))
    packed = numba_levels.quantise(values, norms, COLUMNS, EUCLIDEAN, MOST, FORM, SEED)
    arguments = values.to(device), norms.to(device), COLUMNS, GIVEN, MOST, FORM, SEED
    device_packed = triton_levels.quantise(*arguments)
    assert packed is not None
    assert device_packed is not None
    assert device_packed[0].cpu().equal(packed[0]), "the levels differ"
    assert device_packed[1].cpu().equal(packed[1]), "the levels that escape differ"


def check_powers(values: Tensor, device: str) -> None:
    symbols, words, largest = numba_powers.pack_powers(values, SEED)
    device_symbols, signs, device_largest = triton_powers.pack_powers(values.to(device), SEED)
    assert device_symbols.cpu().equal(symbols), "the exponents differ"
    assert signs.cpu().equal(words), "the signs of the powers differ"
    assert device_largest == largest, "the largest magnitudes differ"


def check_momentum(values: Tensor, added: Tensor, device: str) -> None:
    on_host = values.clone(), added.clone()
    on_device = [tensor.to(device, copy=True) for tensor in on_host]
    expected = numba_momentum.grow_above(*on_host, values, 0.9, False, LOW)
    selected = triton_momentum.grow_above(
        on_device[0], on_device[1], values.to(device), 0.9, False, LOW
    )
    for tensor, expected_tensor in zip((*on_device, *selected), (*on_host, *expected), strict=True):
        assert tensor.cpu().equal(expected_tensor), "momentum or the selected entries differ"


def check_selection(values: Tensor, added: Tensor, device: str) -> None:
    k = few(len(values), 0.001)
    device_values = values.to(device, copy=True)
    indices, device_entries = triton_select.largest(device_values, added.to(device), k)
    expected, entries = numba_select.largest(values.clone(), added, k)
    assert indices.cpu().equal(expected), "the largest entries differ"
    assert device_entries.cpu().equal(entries), "the values of the largest entries differ"
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
    """True if Triton's results equal numba's; prints the differences."""
    residual, gradient = normal(entries, 1), normal(entries, 2)
    checks: list[Callable[[], None]] = [
        lambda: check_signs(residual, gradient, device),
        lambda: check_levels(gradient, device),
        lambda: check_powers(gradient, device),
        lambda: check_momentum(residual, gradient, device),
        lambda: check_selection(residual, gradient, device),
        lambda: check_frames(gradient, device),
        lambda: check_codes(gradient, device),
    ]
    results = [holds(check) for check in checks]
    return all(results)


def holds(check: Callable[[], None]) -> bool:
    """True if a check raises no error; prints the error otherwise."""
    try:
        check()
    except Exception as error:
        print(f"Triton differs from numba: {type(error).__name__}: {error}")
        return False
    return True
