"""Feeds mutated frames to all that reads frames, which must refuse or take each of them.

    python benchmarks/fuzz.py --frames 200000 --seed 1

There are three sorts, as many of each unless --sorts says otherwise: frames of every codec with
other `bytes`, and with other `structures` (see `structures.py`), for `atomo.decode`; and frames
of a `training` step with other structures, for a master and a worker. Every mutant gets a checksum
that matches, or else none would get past it. A mutant passes if decoding it returns tensors of the
declared shapes, or raises FrameError; anything else (another exception, a crash, too much memory,
more than a second of processor time) fails, and the mutant is written to a file.
"""

import argparse
import random
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import structures
import torch
from torch import Generator, Tensor
from training_frames import make_roles

import atomo
from atomo.codecs import CODECS
from atomo.errors import FrameError
from atomo.wire import Compression
from atomo.wire.frame import CHECKSUM_AT, checksum

MOST_ENTRIES = 100_000
MOST_SECONDS = 1.0
MOST_BYTES = 2**25
NESTED = ("topk(values=qsgd)", "svd(factors=topk(ratio=0.5))", "atomo(basis=entrywise)")
EDGES = (0, 1, 2, 127, 128, 254, 255)


def seeds(specs: Sequence[str]) -> list[bytes]:
    """Valid frames: each codec on a few tensors, with and without blosc."""
    generator = Generator().manual_seed(0)
    tensors = [torch.randn(8, 6, generator=generator), torch.randn(5, generator=generator)]
    large = torch.randn(20, 40, generator=generator)
    return [
        atomo.encode(given, spec, seed=1, compression=how)
        for spec in specs
        for given in (tensors, large)
        for how in (Compression(codec="none"), Compression())
    ]


def mutant(frame: bytes, chance: random.Random) -> bytes:
    """Returns a damaged copy, with a checksum that matches."""
    data = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        MUTATIONS[chance.randrange(len(MUTATIONS))](data, chance)
    if len(data) >= CHECKSUM_AT + 8:
        array = np.frombuffer(data, np.uint8)
        struct.pack_into("<Q", data, CHECKSUM_AT, checksum(array))
    return bytes(data)


def flip(data: bytearray, chance: random.Random) -> None:
    """Changes one bit."""
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def edge(data: bytearray, chance: random.Random) -> None:
    """Sets one byte to a boundary value. Headers are changed more often than bodies."""
    if data:
        end = min(len(data), chance.choice((64, 128, len(data))))
        data[chance.randrange(end)] = chance.choice(EDGES)


def cut(data: bytearray, chance: random.Random) -> None:
    """The end goes missing."""
    del data[chance.randrange(len(data) + 1) :]


def grow(data: bytearray, chance: random.Random) -> None:
    """Bytes appear."""
    place = chance.randrange(len(data) + 1)
    data[place:place] = chance.randbytes(chance.randrange(1, 9))


def word(data: bytearray, chance: random.Random) -> None:
    """Four bytes become a number of any size."""
    if len(data) >= 4:
        place = chance.randrange(len(data) - 3)
        struct.pack_into("<I", data, place, chance.getrandbits(chance.choice((4, 8, 16, 31, 32))))


MUTATIONS = (flip, flip, edge, edge, cut, grow, word)


def decoded(data: bytes) -> str:
    """Checks a decoded payload; empty: it is right."""
    found = atomo.decode(data, most_entries=MOST_ENTRIES, most_bytes=MOST_BYTES)
    tensors: list[Tensor] = [found] if isinstance(found, Tensor) else found
    entries = sum(tensor.numel() for tensor in tensors)
    return "more entries than allowed" if entries > MOST_ENTRIES else ""


def check(data: bytes, take: Callable[[bytes], str]) -> str:
    """Checks the treatment of `data`; empty: it is right."""
    started = time.process_time()
    try:
        wrong = take(data)
    except FrameError:
        wrong = ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    seconds = time.process_time() - started
    return f"took {seconds:.1f} s" if seconds > MOST_SECONDS else wrong


Sort = tuple[Callable[[random.Random], bytes], Callable[[bytes], str]]


def other_bytes(specs: Sequence[str]) -> Sort:
    """Returns the maker of such a mutant, and its receiver."""
    originals = seeds(specs)
    return lambda chance: mutant(chance.choice(originals), chance), decoded


def other_structures(specs: Sequence[str]) -> Sort:
    """Returns structurally changed frames for the decoder of unknown frames."""
    return restructured(seeds([*specs, *NESTED])), decoded


def other_training(specs: Sequence[str]) -> Sort:
    """Returns structurally changed frames for the roles of a training step."""
    roles, frames = make_roles([*specs, *NESTED[:2]])
    return restructured(frames), roles.take


def restructured(frames: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Makes frames of the parts of these."""
    parts = [structures.take_apart(frame) for frame in frames]
    if [structures.join(part) for part in parts] != [*frames]:
        raise AssertionError("a valid frame is another once it is apart and together again")
    return lambda chance: structures.mutant(chance.choice(parts), chance.choice(parts), chance)


SORTS: dict[str, Callable[[Sequence[str]], Sort]] = {
    "bytes": other_bytes, "structures": other_structures, "training": other_training,
}  # fmt: skip


def failures(
    frames: int, seed: int, specs: Sequence[str], sorts: Sequence[str]
) -> Iterator[tuple[bytes, str]]:
    """Yields the mutants that were taken wrongly, out of `frames`."""
    chance, ways = random.Random(seed), [SORTS[name](specs) for name in sorts]
    for number in range(frames):
        make, take = ways[number % len(ways)]
        data = make(chance)
        if wrong := check(data, take):
            yield data, wrong


def main() -> int:
    """Runs the fuzzer; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--code", nargs="*", default=list(CODECS))
    parser.add_argument("--sorts", nargs="+", choices=SORTS, default=list(SORTS))
    parser.add_argument("--memory-mb", type=int, default=4096, help="address space beyond today's")
    options = parser.parse_args()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + options.memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    started, bad = time.perf_counter(), 0
    for data, wrong in failures(options.frames, options.seed, options.code, options.sorts):
        bad += 1
        Path(f"fuzz-failure-{bad}.frame").write_bytes(data)
        print(f"fuzz-failure-{bad}.frame: {wrong}")
    rate = options.frames / (time.perf_counter() - started)
    print(f"{options.frames} frames, {bad} failures, {rate:.0f} frames/s, seed {options.seed}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
