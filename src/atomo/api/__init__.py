"""Tensors to self-describing bytes and back, with any codec, outside a training run.

`given` checks what a caller hands in, `description` says in the frame what is in it, and `limits`
bounds what a stranger's frame may cost; `coding` puts them together.
"""

from atomo.api.coding import average, decode, encode

__all__ = ["average", "decode", "encode"]
