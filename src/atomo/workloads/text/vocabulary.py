"""Words to numbers. The vocabulary depends on the training split alone: every rank agrees."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, final

__all__ = ["PADDING", "UNKNOWN_NUMBER", "Vocabulary"]

PADDING: Final = 0  # fills a batch up to its longest sentence
UNKNOWN_NUMBER: Final = 1  # any word that training did not see often enough
SPECIAL: Final = 2


@final
class Vocabulary:
    """The words of some sentences, the frequent first; ties go by spelling."""

    def __init__(self, sentences: Iterable[Sequence[str]], minimum: int) -> None:
        """Numbers the words.

        Args:
            sentences: the tokens of each.
            minimum: occurrences below which a word is unknown.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        frequent = sorted((-count, word) for word, count in counts.items() if count >= minimum)
        self.words = tuple(word for _, word in frequent)
        self._numbers = {word: number for number, word in enumerate(self.words, SPECIAL)}

    def __len__(self) -> int:
        """Counts the numbers, with the special numbers."""
        return len(self.words) + SPECIAL

    def __getitem__(self, word: str) -> int:
        return self._numbers.get(word, UNKNOWN_NUMBER)
