"""Recordings of read speech, as VIVOS lies on disk.

    {train,test}/prompts.txt         SPEAKER_NUMBER TEXT, a recording a line
    {train,test}/genders.txt         SPEAKER GENDER, a speaker a line
    {train,test}/waves/SPEAKER/SPEAKER_NUMBER.wav

Luong and Vu, "A non-expert Kaldi recipe for Vietnamese Speech Recognition System", WLSI 2016.
"""

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from atomo.errors import DataError
from atomo.tasks.audio.mfcc import HOP, RATE, WINDOW, mfcc
from atomo.tasks.lines import at, lines, quoted

__all__ = ["FRAMES", "GENDERS", "Clips", "features", "read_clips"]

FRAMES: Final = 100  # about a second; what comes later is not read, what is missing is zero
GENDERS: Final = ("f", "m")


@final
@dataclass(frozen=True)
class Clips:
    """One split, in the order of its prompts."""

    paths: tuple[Path, ...]
    genders: tuple[int, ...]
    """Of each speaker, a place in `GENDERS`."""


def read_clips(folder: Path) -> Clips:
    """Lists the recordings of a split.

    Raises:
        DataError: a file is missing or not in the layout, or a speaker has no gender.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not there; expected {folder.name}/prompts.txt, {folder.name}/genders.txt "
            f"and {folder.name}/waves/SPEAKER/SPEAKER_NUMBER.wav"
        )
    genders = read_genders(folder / "genders.txt")
    prompts = folder / "prompts.txt"
    names = [line.split(maxsplit=1)[:1] for line in lines(prompts)]
    paths, found = [], []
    for number, name in enumerate(names, 1):
        speaker, _, recording = name[0].rpartition("_") if name else ("", "", "")
        if speaker not in genders or not recording:
            told = f"{quoted(' '.join(name))} is no SPEAKER_NUMBER of a speaker in genders.txt"
            raise at(prompts, number, told)
        paths.append(folder / "waves" / speaker / f"{name[0]}.wav")
        found.append(genders[speaker])
    if not paths:
        raise DataError(f"{prompts} is empty; it must name a recording a line")
    return Clips(tuple(paths), tuple(found))


def read_genders(path: Path) -> dict[str, int]:
    """The gender of each speaker."""
    found: dict[str, int] = {}
    for number, line in enumerate(lines(path), 1):
        parts = line.split()
        if len(parts) != 2 or parts[1].lower() not in GENDERS:
            raise at(path, number, f"{quoted(line)}; expected SPEAKER and one of f, m")
        found[parts[0]] = GENDERS.index(parts[1].lower())
    return found


def features(path: Path) -> Float[Tensor, "13 100"]:
    """The coefficients of a recording's first frames, followed by zeros where it is short.

    Raises:
        DataError: it is not a recording of one channel, 16 bits and 16 000 samples a second, or
            shorter than one frame.
    """
    samples = read_wave(path, WINDOW + (FRAMES - 1) * HOP)
    if len(samples) < WINDOW:
        raise DataError(f"{path} has {len(samples)} samples; at least {WINDOW}, which is 25 ms")
    found = mfcc(samples)
    return torch.nn.functional.pad(found, (0, FRAMES - found.shape[1]))


def read_wave(path: Path, most: int) -> Float[Tensor, " n"]:
    """The first samples of a recording, from -1 to 1."""
    try:
        with path.open("rb") as file, wave.open(file) as sound:
            kind = sound.getnchannels(), 8 * sound.getsampwidth(), sound.getframerate()
            data = sound.readframes(most) if kind == (1, 16, RATE) else b""
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (wave.Error, EOFError) as error:
        raise DataError(f"{path} is no PCM wave file: {error or 'it ends early'}") from error
    if kind != (1, 16, RATE):
        raise DataError(
            f"{path} has {kind[0]} channels, {kind[1]} bits, {kind[2]} samples a second; it must "
            f"have 1, 16 and {RATE}"
        )
    return torch.from_numpy(np.frombuffer(data[: len(data) // 2 * 2], "<i2") / 32_768).float()
