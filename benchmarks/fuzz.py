"""Feeds mutated frames to all readers of frames, which must decode or refuse each frame.

    python benchmarks/fuzz.py --frames 200000 --seed 1

There are three kinds of mutants, in equal numbers; `--sorts` selects kinds. `bytes` changes bytes
in frames of every codec, and `structures` changes their structure (see `structures.py`), both for
`atomo.decode`. `training` changes the structure of the frames of a training step, for a master and
a worker. Every mutant gets a valid checksum, since the checksum would reject all other mutants. A
mutant passes if decoding returns tensors of the declared shapes or raises FrameError. All other
results (another exception, a crash, too much memory, more than a second of processor time) are
failures, and the script writes the mutant to a file.
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
import torch
from torch import Generator, Tensor

import atomo
from atomo.codecs import CODECS
from atomo.errors import FrameError
from atomo.wire import Compression
from atomo.wire.frame import CHECKSUM_AT, checksum
from parts.fuzz import structures
from parts.fuzz.training_frames import make_roles

MOST_ENTRIES = 100_000
MOST_SECONDS = 1.0
MOST_BYTES = 2**25
NESTED = ("topk(values=qsgd)", "svd(factors=topk(ratio=0.5))", "atomo(basis=entrywise)")
EDGES = (0, 1, 2, 127, 128, 254, 255)


def seeds(specs: Sequence[str]) -> list[bytes]:
    """Returns valid frames: each codec on several tensors, with and without blosc."""
    generator = Generator().manual_seed(0)
    tensors = [torch.randn(8, 6, generator=generator), torch.randn(5, generator=generator)]
    large = torch.randn(20, 40, generator=generator)
    return [
        atomo.encode(gradient, spec, seed=1, compression=compression)
        for spec in specs
        for gradient in (tensors, large)
        for compression in (Compression(codec="none"), Compression())
    ]


def mutant(frame: bytes, chance: random.Random) -> bytes:
    """Returns a mutated copy with a valid checksum."""
    data = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        MUTATIONS[chance.randrange(len(MUTATIONS))](data, chance)
    if len(data) >= CHECKSUM_AT + 8:
        array = np.frombuffer(data, np.uint8)
        struct.pack_into("<Q", data, CHECKSUM_AT, checksum(array))
    return bytes(data)


def flip(data: bytearray, chance: random.Random) -> None:
    """Flips one bit."""
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def edge(data: bytearray, chance: random.Random) -> None:
    """Sets one byte to a boundary value. Headers are changed more often than bodies."""
    if data:
        end = min(len(data), chance.choice((64, 128, len(data))))
        data[chance.randrange(end)] = chance.choice(EDGES)


def cut(data: bytearray, chance: random.Random) -> None:
    """Truncates the frame."""
    del data[chance.randrange(len(data) + 1) :]


def grow(data: bytearray, chance: random.Random) -> None:
    """Inserts bytes."""
    place = chance.randrange(len(data) + 1)
    data[place:place] = chance.randbytes(chance.randrange(1, 9))


def word(data: bytearray, chance: random.Random) -> None:
    """Overwrites four bytes with a random number."""
    if len(data) >= 4:
        place = chance.randrange(len(data) - 3)
        struct.pack_into("<I", data, place, chance.getrandbits(chance.choice((4, 8, 16, 31, 32))))


MUTATIONS = (flip, flip, edge, edge, cut, grow, word)


def decoded(data: bytes) -> str:
    """Decodes a frame; returns a problem, or an empty string."""
    result = atomo.decode(data, most_entries=MOST_ENTRIES, most_bytes=MOST_BYTES)
    tensors: list[Tensor] = [result] if isinstance(result, Tensor) else result
    entries = sum(tensor.numel() for tensor in tensors)
    return "more entries than allowed" if entries > MOST_ENTRIES else ""


def check(data: bytes, take: Callable[[bytes], str]) -> str:
    """Passes `data` to a reader; returns a problem, or an empty string."""
    wrong, seconds = timed(data, take)
    if seconds > MOST_SECONDS:  # perhaps it compiled a loop, which the second time does not
        wrong, seconds = timed(data, take)
    return f"took {seconds:.1f} s" if seconds > MOST_SECONDS else wrong


def timed(data: bytes, take: Callable[[bytes], str]) -> tuple[str, float]:
    """Passes `data` to a reader; returns a problem, or an empty string, and the processor time."""
    started = time.process_time()
    try:
        wrong = take(data)
    except FrameError:
        wrong = ""
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    return wrong, time.process_time() - started


Kind = tuple[Callable[[random.Random], bytes], Callable[[bytes], str]]


def other_bytes(specs: Sequence[str]) -> Kind:
    """Returns a function that mutates bytes of frames, and a reader for its mutants."""
    originals = seeds(specs)
    return lambda chance: mutant(chance.choice(originals), chance), decoded


def other_structures(specs: Sequence[str]) -> Kind:
    """Returns a function that changes the structure of frames, and a reader for its mutants."""
    return restructured(seeds([*specs, *NESTED])), decoded


def other_training(specs: Sequence[str]) -> Kind:
    """Returns a function that changes frames of a training step, and the roles that read them."""
    roles, frames = make_roles([*specs, *NESTED[:2]])
    return restructured(frames), roles.take


def restructured(frames: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Returns a function that combines the parts of these frames to new frames."""
    parts = [structures.take_apart(frame) for frame in frames]
    if [structures.join(part) for part in parts] != [*frames]:
        raise AssertionError("a valid frame differs after take_apart and join")
    return lambda chance: structures.mutant(chance.choice(parts), chance.choice(parts), chance)


KINDS: dict[str, Callable[[Sequence[str]], Kind]] = {
    "bytes": other_bytes, "structures": other_structures, "training": other_training,
}  # fmt: skip


def failures(
    frames: int, seed: int, specs: Sequence[str], sorts: Sequence[str]
) -> Iterator[tuple[bytes, str]]:
    """Yields the mutants with a problem among `frames` mutants, and the problem."""
    chance, chosen = random.Random(seed), [KINDS[name](specs) for name in sorts]
    for number in range(frames):
        make, take = chosen[number % len(chosen)]
        data = make(chance)
        if wrong := check(data, take):
            yield data, wrong


def main() -> int:
    """Runs the fuzzer; returns 1 if any mutant failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--code", nargs="*", default=list(CODECS))
    parser.add_argument("--sorts", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--memory-mb", type=int, default=4096, help="address space in addition to that at the start"
    )
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
