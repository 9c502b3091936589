"""The check that all ranks have the same settings and models before they average."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import numpy as np
from torch import Tensor

from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective

__all__ = ["check_alike"]

SHOWN: Final = 3  # differences in an error
Settings = Mapping[str, str]
Shapes = Mapping[str, list[int]]


def check_alike(
    settings: Settings, parameters: Mapping[str, Tensor], collective: Collective
) -> None:
    """Compares settings and parameters of all ranks with those of rank 0.

    Raises:
        ConfigError: a rank has others; the same on all ranks, with the first differences alone.
    """
    shapes = {name: [*parameter.shape] for name, parameter in parameters.items()}
    mine = json.dumps([dict(settings), shapes])
    given = collective.gather(np.frombuffer(mine.encode(), np.uint8), "settings and model")
    texts = [one.tobytes() for one in given]
    first = read(0, texts[0])
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise ConfigError(told(rank, [*differences(rank, read(rank, text), first)]))


def read(rank: int, text: bytes) -> Any:
    """Reads the settings and the shapes that a rank sent."""
    try:
        settings, shapes = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"rank {rank} sent no settings: is it of another version?") from error
    return settings, shapes


def told(rank: int, found: list[str]) -> str:
    """Returns the text of an error: the first few differences of a rank from rank 0."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    shown = "; ".join(islice(found, SHOWN)) or f"rank {rank} is of another version than rank 0"
    return f"{shown}{more}: model and settings must be the same on all ranks"


def differences(
    rank: int, theirs: tuple[Settings, Shapes], first: tuple[Settings, Shapes]
) -> Iterator[str]:
    """Yields the differences of a rank's settings and shapes from those of rank 0."""
    for name in dict.fromkeys([*first[0], *theirs[0]]):
        other, own = theirs[0].get(name, "none"), first[0].get(name, "none")
        if other != own:
            yield f"rank {rank} has {name} {other}, rank 0 {own}"
    yield from of_shapes(rank, theirs[1], first[1])


def of_shapes(rank: int, theirs: Shapes, first: Shapes) -> Iterator[str]:
    """Yields the differences between the parameters of a rank and those of rank 0."""
    for name in dict.fromkeys([*first, *theirs]):
        other, own = theirs.get(name), first.get(name)
        if other is None or own is None:
            has, lacks = (0, rank) if other is None else (rank, 0)
            yield f"rank {has} has a parameter {name}, rank {lacks} has none"
        elif other != own:
            yield f"rank {rank} has {name} of shape {tuple(other)}, rank 0 {tuple(own)}"
    if theirs.keys() == first.keys() and [*theirs] != [*first]:
        pairs = zip(theirs, first, strict=True)
        here, there = next((here, there) for here, there in pairs if here != there)
        yield f"rank {rank} has parameter {here} where rank 0 has {there}, in another order"
