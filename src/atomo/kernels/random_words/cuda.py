"""Random words in Triton. Contracts: `random_words`."""

import triton.language as tl

from atomo.kernels.triton_jit import device_code

__all__ = ["first_words", "mix", "next_words", "scramble"]


@device_code
def scramble(x):
    x = x.to(tl.uint64)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@device_code
def mix(x):
    return scramble(x.to(tl.uint64) + 0x9E3779B97F4A7C15)


@device_code
def first_words(key, lanes):
    """Returns the first word of each lane, from blocks of keys and of lanes, which broadcast."""
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    x = (lanes.to(tl.uint32) * 0x9E3779B9) ^ low
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = ((x ^ (x >> 15)) + high) * 0x846CA68B
    return x ^ (x >> 16)


@device_code
def next_words(x):
    """Returns the next words in the same lanes."""
    x = x ^ (x << 13)
    x = x ^ (x >> 17)
    return x ^ (x << 5)
