"""Tensors to self-describing bytes and back, with any codec, outside a training run.

validate.py     checks of the arguments
description.py  the description of the tensors in a frame
limits.py       limits on the memory and the work that an untrusted frame may cost
encoding.py     `atomo.encode`
decoding.py     `atomo.decode` and `atomo.average`
encoder.py      `atomo.Encoder`, which reuses buffers from step to step
scratch.py      the buffer of `Encoder` for one tensor
"""

from atomo.api.decoding import average, decode
from atomo.api.encoder import Encoder
from atomo.api.encoding import encode

__all__ = ["Encoder", "average", "decode", "encode"]
