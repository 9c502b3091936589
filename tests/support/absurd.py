"""Invalid files for tests: truncated and changed bytes, JSON with absurd values."""

import json
import random
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["ABSURD", "damaged", "documents"]

DIGITS, DEEP = "@digits@", "@deep@"  # placeholders for values that `json` cannot write
ABSURD: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 2**63, 10**400, 0.5, -1e308, float("nan"), float("inf"), "", "x" * 9000,
    "\x1b[31m\ud800", [], {}, [[]], {"a": {}}, [-1, 2**70], DIGITS, DEEP,
)  # fmt: skip


def damaged(data: bytes, count: int, seed: int = 1) -> Iterator[bytes]:
    """Yields `data` cut off, with other bytes in it, and with a part of it twice or left out."""
    draw = random.Random(seed)
    yield b""
    yield draw.randbytes(len(data))
    for _ in range(count):
        one = bytearray(data)
        at = draw.randrange(len(one))
        match draw.randrange(5):
            case 0:
                del one[at:]
            case 1:
                del one[at : at + draw.randrange(1, 9)]
            case 2:
                one[at:at] = one[at : at + draw.randrange(1, 99)]
            case 3:
                size = draw.choice((1, 2, 4, 8))
                one[at : at + size] = draw.choice((b"\xff", b"\x00", b"\x7f", b"9")) * size
            case _:
                for _ in range(draw.randrange(1, 9)):
                    one[draw.randrange(len(one))] = draw.randrange(256)
        yield bytes(one)


def documents(document: Any) -> Iterator[bytes]:
    """Yields JSON in which one value at a time is absurd, or is not there."""
    for path in paths(document):
        for value in ABSURD:
            yield encoded(put(document, path, value))
        if path:
            yield encoded(without(document, path))


def encoded(document: Any) -> bytes:
    text = json.dumps(document)
    text = text.replace(f'"{DIGITS}"', "9" * 5000).replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000)
    return text.encode()


def paths(document: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    match document:
        case dict():
            below: Any = document.items()
        case list():
            below = enumerate(document)
        case _:
            return
    for key, value in below:
        for path in paths(value):
            yield (key, *path)


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Returns a copy with another value at a place."""
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = put(document[path[0]], path[1:], value)
    return copy


def without(document: Any, path: tuple[Any, ...]) -> Any:
    """Returns a copy without a place."""
    copy = document.copy()
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = without(document[path[0]], path[1:])
    return copy
