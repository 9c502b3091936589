"""Word and character error rates of transcriptions.

Errors are substitutions, deletions and insertions, summed over all texts (Morris, Maier and Green,
"From WER and RIL to MER and WIL", Interspeech 2004), as jiwer counts them.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final, final

from jaxtyping import Float, Int64
from torch import Tensor

from atomo.core.distribution import install_command
from atomo.errors import MissingPackage
from atomo.workloads.audio.alphabet import Alphabet
from atomo.workloads.audio.ctc import CTC, decode_greedy
from atomo.workloads.base import LOSS, Metric, Scorer

__all__ = ["WORD_METRICS", "WordErrors", "require_jiwer"]

WER: Final = Metric("wer", "WER", "WER", higher_is_better=False)
CER: Final = Metric("cer", "CER", "CER", higher_is_better=False)
WORD_METRICS: Final = (WER, CER)


def require_jiwer() -> None:
    """Raises MissingPackage where the package that counts errors is missing."""
    if find_spec("jiwer") is None:
        raise MissingPackage(
            "word error rates need the package jiwer, which is not here; "
            f"`{install_command('audio')}` brings it"
        )


@final
class WordErrors(Scorer):
    """The error rates over all texts, above 1 with more errors than words, and the loss."""

    def __init__(self, alphabet: Alphabet) -> None:
        self._alphabet = alphabet
        self._references: list[str] = []
        self._texts: list[str] = []
        self._loss = 0.0

    def add(self, outputs: Float[Tensor, "b t k"], targets: Int64[Tensor, "b n"]) -> None:
        self._references += self._read(targets)
        self._texts += self._read(decode_greedy(outputs))
        self._loss += float(CTC().loss(outputs, targets).double()) * len(targets)

    def values(self) -> Mapping[str, float]:
        from jiwer import cer, wer  # an extra

        references, read = self._references, self._texts
        loss = self._loss / len(references)
        return {WER.key: wer(references, read), CER.key: cer(references, read), LOSS.key: loss}

    def _read(self, numbers: Int64[Tensor, "b n"]) -> list[str]:
        return [self._alphabet.text(row) for row in numbers.tolist()]
