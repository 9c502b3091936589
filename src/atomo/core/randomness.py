"""Seeds derived from names and numbers, so that no random generator is part of the state.

A resumed run, and another host, derive the same seed from the same words.
"""

import xxhash

__all__ = ["derive"]


def derive(*words: int | str) -> int:
    """Returns a seed of 63 bits for `words`, such as (run seed, "encode", step, worker).

    >>> derive(0, "encode", 1) == derive(0, "encode", 1) != derive(0, "encode", 2)
    True
    """
    return xxhash.xxh3_64_intdigest(repr(words).encode()) >> 1
