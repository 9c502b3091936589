"""Tensors to self-describing bytes and back, with any codec, outside a training run.

`given` checks what a caller hands in, `description` says in the frame what is in it, and `limits`
bounds what a stranger's frame may cost; `coding` and `decoding` put them together, and `encoder`
keeps from call to call what a loop would make anew at every step.
"""

from atomo.api.decoding import average, decode
from atomo.api.encoder import Encoder
from atomo.api.encoding import encode

__all__ = ["Encoder", "average", "decode", "encode"]
