"""The task of transcribing a recording into characters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence

from atomo.errors import ConfigError, DataError
from atomo.workloads.audio.alphabet import Alphabet
from atomo.workloads.audio.ctc import CTC, frames_needed
from atomo.workloads.audio.frame_network import FrameBiLSTM, frames_after
from atomo.workloads.audio.mfcc import COEFFICIENTS, RATE
from atomo.workloads.audio.prompts import Prompt, read_prompts
from atomo.workloads.audio.waves import coefficients
from atomo.workloads.audio.word_errors import WORD_METRICS, WordErrors, require_jiwer
from atomo.workloads.base import STORED, Batch, Metric, Samples, Task, Workload
from atomo.workloads.lines import first_folder

__all__ = ["Transcription"]

CORPUS: Final = "VIVOS"
TOGETHER: Final = 100  # recordings in memory at a time while a checkpoint is scored
FLAT: Final = 1e-3  # of a coefficient's deviation; a recording of one sound has none


@final
class SpokenSamples(Samples):
    """A split; each recording is read when it is first asked for, and its coefficients kept."""

    def __init__(
        self, prompts: Sequence[Prompt], alphabet: Alphabet, seconds: int, stride: int
    ) -> None:
        """Creates the recordings of some prompts.

        Args:
            prompts: of the split.
            alphabet: of the texts.
            seconds: the longest recording.
            stride: frames that the network makes one of.
        """
        self._prompts, self._seconds, self._stride = prompts, seconds, stride
        self._texts = [alphabet.numbers(entry.text) for entry in prompts]
        self._kept: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._prompts)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        """Coefficients over time, padded to the longest; how many frames each has; the texts."""
        frames = [self._frames(index) for index in indices.tolist()]
        lengths = torch.tensor([len(recording) for recording in frames])
        padded = pad_sequence(frames, batch_first=True).transpose(1, 2)
        texts = [self._texts[index] for index in indices.tolist()]
        return Batch((padded, lengths), pad_sequence(texts, batch_first=True))

    def _frames(self, index: int) -> Float[Tensor, "t 13"]:
        if index not in self._kept:
            self._kept[index] = self._read(self._prompts[index], self._texts[index])
        return self._kept[index]

    def _read(self, prompt: Prompt, text: Int64[Tensor, " n"]) -> Float[Tensor, "t 13"]:
        """Returns the frames of a recording, each coefficient of mean 0 and deviation 1
        over time.
        """
        features = coefficients(prompt.path, self._seconds * RATE, whole=True).T
        frames, needed = frames_after(len(features), self._stride), frames_needed(text)
        if frames < needed:
            raise DataError(
                f"{prompt.path}: {frames} frames are too few for the {len(text)} characters of its "
                f"prompt, which need {needed}; it may be cut off, else give a lower stride than "
                f"{self._stride}"
            )
        deviation = features.std(0, correction=0).clamp_min(FLAT)
        return (features - features.mean(0)) / deviation


@final
@dataclass(frozen=True)
class Transcription(Task):
    """Recognition of speech by connectionist temporal classification."""

    hidden: int = 256
    """Width of each convolution, and of each LSTM in each direction."""
    stride: int = 2
    """Frames of 10 ms that become one; higher => faster, and fewer characters a second."""
    seconds: int = 60
    """The longest recording."""
    alphabet: str = field(default="", metadata=STORED)
    """Characters, in the order of the network's outputs; empty: those of the training prompts."""

    id: ClassVar[str] = "transcription"
    samples: ClassVar[str] = "recordings"
    metrics: ClassVar[tuple[Metric, ...]] = WORD_METRICS
    network: ClassVar[str] = "ConvBiLSTM"
    dataset: ClassVar[str] = CORPUS

    def __post_init__(self) -> None:
        for name, largest in (("hidden", 4096), ("stride", 16), ("seconds", 3600)):
            if not 1 <= getattr(self, name) <= largest:
                value = getattr(self, name)
                raise ConfigError(f"transcription: {name} must be 1 to {largest}, got {value}")

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        self.no_size(image_size)
        require_jiwer()
        name = self.dataset_named(dataset)
        root = first_folder([data_dir / name.lower(), data_dir / name])
        train, test = (prompts_with_text(root / split) for split in ("train", "test"))
        alphabet = Alphabet(self.alphabet or Alphabet.of(entry.text for entry in train).characters)
        return Workload(
            SpokenSamples(train, alphabet, self.seconds, self.stride),
            SpokenSamples(test, alphabet, self.seconds, self.stride),
            lambda name: self._build(name, len(alphabet)),
            CTC(),
            lambda: WordErrors(alphabet),
            eval_batch_size=TOGETHER,
            stored_fields={"alphabet": alphabet.characters},
        )

    def _build(self, name: str, characters: int) -> Module:
        self.network_named(name)
        return FrameBiLSTM(COEFFICIENTS, self.hidden, self.stride, characters)


def prompts_with_text(folder: Path) -> list[Prompt]:
    """Returns the prompts of a split, all of which have a text."""
    prompts = read_prompts(folder)
    for entry in prompts:
        if not entry.text:
            raise entry.error(f"{entry.path.stem} has no text; the spoken text must follow")
    return prompts
