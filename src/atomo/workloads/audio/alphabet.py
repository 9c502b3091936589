"""Characters as numbers: 0 is CTC's blank, then come those of the alphabet."""

from collections.abc import Iterable
from typing import Final, final

import torch
from jaxtyping import Int64
from torch import Tensor

from atomo.errors import ConfigError

__all__ = ["BLANK", "Alphabet"]

BLANK: Final = 0
MOST: Final = 8000  # characters, which the manifest of a checkpoint has room for
UNKNOWN: Final = "\ufffd"  # stands in a reference for a character that training has not


@final
class Alphabet:
    """The characters of texts, in a fixed order.

    Args:
        characters: each once.

    Raises:
        ConfigError: a character is there twice, or there are too many.
    """

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self._signs = f" {characters}{UNKNOWN}"  # by number
        self._numbers = {character: number for number, character in enumerate(characters, 1)}
        if len(self._numbers) < len(characters) or not 1 <= len(characters) <= MOST:
            raise ConfigError(
                f"an alphabet of {len(characters)} characters, {len(self._numbers)} "
                f"distinct; it must have 1 to {MOST}, each once"
            )

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Alphabet":
        """Returns the characters of some texts, sorted."""
        return cls("".join(sorted(set().union(*texts))))

    def __len__(self) -> int:
        """Counts the characters, the blank excluded."""
        return len(self.characters)

    def numbers(self, text: str) -> Int64[Tensor, " n"]:
        """Returns a text as numbers; one above all others is for characters that are not there."""
        return torch.tensor([self._numbers.get(character, len(self) + 1) for character in text])

    def text(self, numbers: Iterable[int]) -> str:
        """Returns the text of some numbers, without blanks."""
        return "".join(self._signs[n] for n in numbers if n != BLANK)
