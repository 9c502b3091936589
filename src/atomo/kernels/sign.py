"""One bit an entry, for the device of the tensor. What both backends promise.

The entries go by tiles of 32 rows of 64 (a last tile has shorter rows): bit i of word j is the IEEE
sign bit of entry j of row i, so that -0.0 counts as negative and 0.0 as positive.
"""

import numpy as np
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from atomo.kernels.cpu import sign as cpu
from atomo.kernels.device import sign as device

__all__ = [
    "add_pack_means",
    "add_pack_sum",
    "add_row_signs",
    "add_signs",
    "pack_signs",
    "word_count",
]


def word_count(entries: int) -> int:
    """How many words of 32 bits hold the signs of so many entries."""
    return (entries + 31) // 32


def pack_signs(values: Float[Tensor, " n"]) -> tuple[Int32[Tensor, " words"], float]:
    """The signs of contiguous values, and the largest magnitude: NaN or infinity where one is."""
    if values.device.type != "cpu":
        return device.pack_signs(values)
    words = torch.empty(word_count(len(values)), dtype=torch.int32)
    bits = cpu.pack_signs(values.numpy().view(np.int32), words.numpy().view(np.uint32))
    return words, float(np.array([bits], np.int32).view(np.float32)[0])


def add_pack_sum(
    values: Float[Tensor, " n"], added: Float[Tensor, " n"] | None = None
) -> tuple[Int32[Tensor, " words"], float, float, int]:
    """The signs, the sums of the entries without and with a sign bit, and how many are without.

    Args:
        values: contiguous.
        added: contiguous; added to `values` first, in place.

    Returns:
        Sums that are not finite where an entry is not.
    """
    if values.device.type != "cpu":
        return device.add_pack_sum(values, added)
    array = values.numpy()
    other = array if added is None else added.numpy()
    words = torch.empty(word_count(len(values)), dtype=torch.int32)
    sums = cpu.add_pack_sum(array, other, added is not None, words.numpy().view(np.uint32))
    positive, negative, count = sums
    return words, float(positive), float(negative), int(count)


def add_signs(
    words: Int32[Tensor, " words"], positive: float, negative: float, out: Float[Tensor, " n"]
) -> None:
    """Adds `positive` where the sign bit is 0 and `negative` where it is 1, in place.

    Raises:
        ValueError: the words are not as many as `out` needs; it is unchanged.
    """
    if len(words) != word_count(len(out)):
        raise ValueError(f"{len(words)} words of signs for {len(out)} entries")
    if out.device.type != "cpu":
        device.add_signs(words, positive, negative, out)
        return
    held = words.clone() if words.data_ptr() % 4 else words  # a frame's bytes may start anywhere
    cpu.add_signs(held.numpy().view(np.uint32), positive, negative, out.numpy())


def add_pack_means(
    values: Float[Tensor, " n"], added: Float[Tensor, " n"] | None, row: int
) -> tuple[Int32[Tensor, " words"], Float[Tensor, " means"]]:
    """The signs, and the means of the entries without and with a sign bit, run by run.

    Args:
        values: contiguous.
        added: contiguous; added to `values` first, in place.
        row: entries in a run; the last one may be shorter.

    Returns:
        The words, and two means a run: 0 where it has no such entry, not finite where one is not.
    """
    if values.device.type != "cpu":
        return device.add_pack_means(values, added, row)
    means = values.new_empty(2 * -(-len(values) // row))
    words = torch.empty(word_count(len(values)), dtype=torch.int32)
    other = values if added is None else added
    setting = other.numpy(), added is not None, row
    cpu.add_pack_means(values.numpy(), *setting, words.numpy().view(np.uint32), means.numpy())
    return words, means


def add_row_signs(
    words: Int32[Tensor, " words"],
    means: Float[Tensor, " means"],
    row: int,
    scale: float,
    out: Float[Tensor, " n"],
) -> None:
    """Adds `scale` times what `add_pack_means` found for its sign and run to each entry, in place.

    Raises:
        ValueError: words or means are not as many as `out` needs; it is unchanged.
    """
    if len(words) != word_count(len(out)) or len(means) != 2 * -(-len(out) // row):
        raise ValueError(f"{len(words)} words and {len(means)} means for {len(out)} entries")
    if out.device.type != "cpu":
        device.add_row_signs(words, means, row, scale, out)
        return
    held = words.clone() if words.data_ptr() % 4 else words  # a frame's bytes may start anywhere
    found = means.clone() if means.data_ptr() % 4 else means
    cpu.add_row_signs(
        held.numpy().view(np.uint32), found.numpy(), row, np.float32(scale), out.numpy()
    )
