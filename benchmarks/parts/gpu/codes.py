"""Codes of `gpu.py`: Huffman codes of levels, compared with the CPU's and timed."""

from collections.abc import Callable

import torch
from torch import Tensor

from atomo.kernels.entropy import cpu as numba_entropy
from atomo.kernels.entropy import cuda as triton_entropy
from atomo.kernels.quantise import COLUMNS, EUCLIDEAN, FORMS
from atomo.kernels.quantise import cpu as numba_levels

__all__ = ["check_codes", "code_rows"]

SEED = 11
LEVELS = ((FORMS[0], 1), (FORMS[1], 7))  # trits, nearly all 0, and 4-bit levels


def packed(values: Tensor, number: int) -> Tensor:
    """Returns levels as bytes, on the CPU."""
    form, highest = LEVELS[number]
    norms = values.new_empty(-(-len(values) // COLUMNS))
    quantised = numba_levels.quantise(values, norms, COLUMNS, EUCLIDEAN, highest, form, SEED)
    assert quantised is not None
    symbols: Tensor = quantised[0]
    return symbols


def check_codes(values: Tensor, device: str) -> None:
    """Raises an error if codes of levels differ from the CPU's, or do not decode to the levels."""
    for number, (form, _) in enumerate(LEVELS):
        symbols, trits = packed(values, number), form.base == 3
        words = numba_entropy.compress(symbols, True, trits)
        device_words = triton_entropy.compress(symbols.to(device), True, trits)
        assert device_words.cpu().equal(words), "the codes of the levels differ"
        (read,) = triton_entropy.decompress_all([words], len(symbols), torch.device(device))
        assert read.cpu().equal(symbols), "the codes do not decode to the levels"


def code_rows(values: Tensor, device: str) -> list[tuple[str, float, Callable[[], object]]]:
    """Returns the cases to time, for 4-bit levels: name, minimum bytes for each entry, function."""
    here, target = packed(values, 1), torch.device(device)
    symbols, words = here.to(device), numba_entropy.compress(here, True, False)
    share, coded = len(here) / len(values), 4 * len(words) / len(here)
    return [
        ("triton: levels coded", share * (3 + 2 * coded),
         lambda: triton_entropy.compress(symbols, True, False)),
        ("triton: codes read", share * (1 + 3 * coded),
         lambda: triton_entropy.decompress_all([words], len(here), target)),
        ("the CPU: levels coded", 0.0, lambda: numba_entropy.compress(here, True, False)),
        ("the CPU: codes read", 0.0, lambda: numba_entropy.decompress(words, len(here))),
    ]  # fmt: skip
