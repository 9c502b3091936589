"""Sound on disk: PCM wave files of one channel, 16 bits, 16 000 samples a second."""

import struct
import wave
from pathlib import Path
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from atomo.core.safe_read import open_plain
from atomo.errors import DataError
from atomo.workloads.audio.mfcc import RATE, WINDOW, mfcc

__all__ = ["coefficients"]

# The errors of Python's reader for chunks with wrong sizes.
UNREADABLE: Final = (wave.Error, EOFError, RuntimeError, ValueError, OverflowError, struct.error)


def coefficients(path: Path, limit: int, whole: bool = False) -> Float[Tensor, "13 t"]:
    """Returns the coefficients of all frames of a recording's first samples.

    Args:
        path: the file.
        limit: samples that are read.
        whole: refuse a longer recording.

    Raises:
        DataError: the file is not a recording of one channel, 16 bits and 16 000 samples a second,
            shorter than one frame, or longer than it may be.
    """
    samples = read_wave(path, limit + whole)
    if len(samples) < WINDOW:
        raise DataError(f"{path} has {len(samples)} samples; at least {WINDOW}, which is 25 ms")
    if len(samples) > limit:
        raise DataError(f"{path} has more than {limit} samples, which is {limit / RATE:g} s")
    return mfcc(samples)


def read_wave(path: Path, limit: int) -> Float[Tensor, " n"]:
    """Returns the first samples of a recording, from -1 to 1."""
    try:
        with open_plain(path, linked=True) as file, wave.open(file) as sound:
            kind = sound.getnchannels(), 8 * sound.getsampwidth(), sound.getframerate()
            data = sound.readframes(limit) if kind == (1, 16, RATE) else b""
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise DataError(f"{path} is no PCM wave file: {error or 'it ends early'}") from error
    if kind != (1, 16, RATE):
        raise DataError(
            f"{path} has {kind[0]} channels, {kind[1]} bits, {kind[2]} samples a second; it must "
            f"have 1, 16 and {RATE}"
        )
    return torch.from_numpy(np.frombuffer(data[: len(data) // 2 * 2], "<i2") / 32_768).float()
