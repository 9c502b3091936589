"""Random bits as a function of a key and a place, without a generator's state.

All backends compute the same bits. `mix` is a step of splitmix64 (Steele, Lea and Flood, "Fast
Splittable Pseudorandom Number Generators", 2014) and `scramble` its last part, which adds no
constant first.

Word i of a key is, for i < 128, a 32-bit hash of i and the key, and beyond Marsaglia's xorshift
("Xorshift RNGs", 2003) of word i - 128, four times faster than a hash. Up to 20 words of a lane are
uniform in pairs down to the 12th bit and in threes down to the 8th, enough for
the rounding of neighbours; the matrix of the generator shows it.
"""

from typing import Final

__all__ = ["FIRST", "GOLDEN", "LANES", "SECOND"]

# Constants and shifts of splitmix64.
GOLDEN: Final = 0x9E3779B97F4A7C15
FIRST: Final = 0xBF58476D1CE4E5B9
SECOND: Final = 0x94D049BB133111EB
LANES: Final = 128
