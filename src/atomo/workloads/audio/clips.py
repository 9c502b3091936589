"""Recordings of read speech, in the layout of VIVOS.

    {train,test}/prompts.txt         SPEAKER_NUMBER TEXT, a recording a line
    {train,test}/genders.txt         SPEAKER GENDER, a speaker a line
    {train,test}/waves/SPEAKER/SPEAKER_NUMBER.wav

Luong and Vu, "A non-expert Kaldi recipe for Vietnamese Speech Recognition System", WLSI 2016.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.workloads.audio.mfcc import HOP, WINDOW
from atomo.workloads.audio.prompts import read_prompts
from atomo.workloads.audio.waves import coefficients
from atomo.workloads.lines import line_error, quoted, read_lines

__all__ = ["FRAMES", "GENDERS", "Clips", "features", "read_clips"]

FRAMES: Final = 100  # about a second; later frames are not read, missing frames are zero
GENDERS: Final = ("f", "m")


@final
@dataclass(frozen=True)
class Clips:
    """One split, in the order of its prompts."""

    paths: tuple[Path, ...]
    genders: tuple[int, ...]
    """The gender of each speaker, a place in `GENDERS`."""


def read_clips(folder: Path) -> Clips:
    """Lists the recordings of a split.

    Raises:
        DataError: a file is missing or not in the layout, or a speaker has no gender.
    """
    prompts = read_prompts(folder)
    genders = read_genders(folder / "genders.txt")
    for entry in prompts:
        if entry.speaker not in genders:
            reason = f"{quoted(entry.path.stem)} is no SPEAKER_NUMBER of a speaker in genders.txt"
            raise entry.error(reason)
    return Clips(
        tuple(entry.path for entry in prompts), tuple(genders[entry.speaker] for entry in prompts)
    )


def read_genders(path: Path) -> dict[str, int]:
    """Returns the gender of each speaker."""
    genders: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split()
        if len(parts) != 2 or parts[1].lower() not in GENDERS:
            raise line_error(path, number, f"{quoted(line)}; expected SPEAKER and one of f, m")
        genders[parts[0]] = GENDERS.index(parts[1].lower())
    return genders


def features(path: Path) -> Float[Tensor, "13 100"]:
    """Returns the coefficients of a recording's first frames, followed by zeros where it is short.

    Raises:
        DataError: the file is not a recording of one channel, 16 bits and 16 000 samples a second,
            or shorter than one frame.
    """
    frames = coefficients(path, WINDOW + (FRAMES - 1) * HOP)
    return torch.nn.functional.pad(frames, (0, FRAMES - frames.shape[1]))
