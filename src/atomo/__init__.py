"""Data-parallel PyTorch training over MPI with compressed gradients.

>>> import atomo, torch
>>> data = atomo.encode(torch.ones(3), "fp16", seed=0)
>>> atomo.decode(data)
tensor([1., 1., 1.])
"""

from atomo.api import decode, encode
from atomo.codecs import CODECS, Codec, Law, make_codec
from atomo.errors import AtomoError

__all__ = ["CODECS", "AtomoError", "Codec", "Law", "decode", "encode", "make_codec"]
