"""The gender of a speaker, from about a second of speech."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import Module

from atomo.errors import ConfigError
from atomo.workloads.audio.clips import FRAMES, GENDERS, Clips, features, read_clips
from atomo.workloads.audio.mfcc import COEFFICIENTS
from atomo.workloads.audio.network import ConvBiLSTM
from atomo.workloads.base import Batch, Metric, Samples, Task, Workload
from atomo.workloads.classes import ACCURACY, F1, CrossEntropy, FScorer
from atomo.workloads.lines import first_folder

__all__ = ["Audio"]

CORPUS = "VIVOS"


@final
class ClipSamples(Samples):
    """A split; each recording is read when it is first asked for, and its coefficients kept."""

    def __init__(self, clips: Clips) -> None:
        self._paths, self._labels = clips.paths, torch.tensor(clips.genders)
        self._kept = torch.empty(len(clips.paths), COEFFICIENTS, FRAMES)
        self._known = torch.zeros(len(clips.paths), dtype=torch.bool)

    def __len__(self) -> int:
        return len(self._paths)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        """Returns their coefficients over time, and the genders."""
        unknown = indices[~self._known[indices]]
        for index in unknown.tolist():
            self._kept[index] = features(self._paths[index])
        self._known[unknown] = True
        return Batch((self._kept[indices],), self._labels[indices])


@final
@dataclass(frozen=True)
class Audio(Task):
    """Classification of speakers, female or male."""

    hidden: int = 64
    """Width of each convolution, and of each LSTM in each direction."""

    id: ClassVar[str] = "audio"
    samples: ClassVar[str] = "clips"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, F1)
    network: ClassVar[str] = "ConvBiLSTM"
    dataset: ClassVar[str] = CORPUS

    def __post_init__(self) -> None:
        if not 1 <= self.hidden <= 4096:
            raise ConfigError(f"audio: hidden must be 1 to 4096, got {self.hidden}")

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        self.no_size(image_size)
        name = self.dataset_named(dataset)
        root = first_folder([data_dir / name.lower(), data_dir / name])
        return Workload(
            ClipSamples(read_clips(root / "train")),
            ClipSamples(read_clips(root / "test")),
            self._build,
            CrossEntropy(),
            lambda: FScorer(len(GENDERS)),
        )

    def _build(self, name: str) -> Module:
        self.network_named(name)
        return ConvBiLSTM(COEFFICIENTS, self.hidden, len(GENDERS))
