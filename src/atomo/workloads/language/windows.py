"""Windows of a text: each predicts some words from those before them, and from a context."""

from typing import Final, final

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from atomo.workloads.base import Batch, Samples

__all__ = ["NO_WORD", "Windows"]

NO_WORD: Final = -100  # a target after the end of the text: `ignore_index` of cross entropy


@final
class Windows(Samples):
    """A text cut into windows of `length` words; every word is predicted once.

    The network also reads the `context` words before the window, and does not predict them. So it
    has a state at the start of each window, but windows are independent: they come in any order,
    on any worker. The first window follows a context of line ends.
    """

    def __init__(self, text: Int32[Tensor, " n"], end: int, length: int, context: int) -> None:
        self._length, self._read = length, context + length
        behind = -len(text) % length
        padded = torch.cat([text, text.new_full((behind,), NO_WORD)])
        self._targets = padded.view(-1, length)
        self._text = torch.cat([text.new_full((context + 1,), end), padded])

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        """Returns the inputs, (b, context + length), and the expected words, (b, length)."""
        places = self._length * indices[:, None] + torch.arange(self._read)
        # Indices after the end are inputs of words that do not count.
        return Batch((self._text[places].long().clamp_min(0),), self._targets[indices].long())
