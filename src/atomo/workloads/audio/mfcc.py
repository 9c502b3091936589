"""Mel-frequency cepstral coefficients (Davis and Mermelstein, 1980), in PyTorch.

Frames of 25 ms every 10 ms under a Hann window, the power spectrum, 40 triangles on the mel scale
from 0 Hz to half the rate, the logarithm, and a discrete cosine transform with orthonormal rows.
"""

import math
from functools import cache
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["COEFFICIENTS", "HOP", "RATE", "WINDOW", "mfcc"]

RATE: Final = 16_000  # samples a second
WINDOW: Final = 400  # samples a frame
HOP: Final = 160  # samples between the beginnings of two frames
BINS: Final = 512  # points of the Fourier transform
MELS: Final = 40
COEFFICIENTS: Final = 13
FLOOR: Final = 1e-10  # of a power, before the logarithm


def mfcc(samples: Float[Tensor, " n"]) -> Float[Tensor, "c t"]:
    """Returns the coefficients of every whole frame.

    Args:
        samples: of sound, from -1 to 1, `RATE` a second; at least `WINDOW`.
    """
    frames = samples.unfold(0, WINDOW, HOP) * torch.hann_window(WINDOW)
    power = torch.fft.rfft(frames, BINS).abs().square() / BINS
    coefficients: Tensor = cosines() @ (power @ triangles()).clamp_min(FLOOR).log().T
    return coefficients


@cache
def triangles() -> Float[Tensor, "f m"]:
    """Returns the weight of each frequency in each band; neighbouring bands overlap by half."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    mels = torch.linspace(0, top, MELS + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hertz = torch.linspace(0, RATE / 2, BINS // 2 + 1)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0)


@cache
def cosines() -> Float[Tensor, "c m"]:
    """Returns the first rows of the discrete cosine transform, type II."""
    rows = torch.arange(COEFFICIENTS)[:, None]
    waves = torch.cos(math.pi / MELS * (torch.arange(MELS) + 0.5) * rows) * math.sqrt(2 / MELS)
    waves[0] /= math.sqrt(2)
    return waves
