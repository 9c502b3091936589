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
        ConfigError: a rank has other settings or parameters; the message, the same on all ranks,
            has the first differences.
    """
    shapes = {name: [*parameter.shape] for name, parameter in parameters.items()}
    text = json.dumps([dict(settings), shapes])
    messages = collective.gather(np.frombuffer(text.encode(), np.uint8), "settings and model")
    texts = [message.tobytes() for message in messages]
    first = read(0, texts[0])
    for rank, received in enumerate(texts):
        if received != texts[0]:
            differing = [*differences(rank, read(rank, received), first)]
            raise ConfigError(message_of(rank, differing))


def read(rank: int, text: bytes) -> Any:
    """Reads the settings and the shapes that a rank sent."""
    try:
        settings, shapes = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"rank {rank} sent no settings: is it of another version?") from error
    return settings, shapes


def message_of(rank: int, differing: list[str]) -> str:
    """Returns the text of an error: the first few differences of a rank from rank 0."""
    hidden = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    shown = "; ".join(islice(differing, SHOWN)) or f"rank {rank} is of another version than rank 0"
    return f"{shown}{hidden}: model and settings must be the same on all ranks"


def differences(
    rank: int, compared: tuple[Settings, Shapes], first: tuple[Settings, Shapes]
) -> Iterator[str]:
    """Yields the differences of a rank's settings and shapes from those of rank 0."""
    for name in dict.fromkeys([*first[0], *compared[0]]):
        value, expected = compared[0].get(name, "none"), first[0].get(name, "none")
        if value != expected:
            yield f"rank {rank} has {name} {value}, rank 0 {expected}"
    yield from of_shapes(rank, compared[1], first[1])


def of_shapes(rank: int, compared: Shapes, first: Shapes) -> Iterator[str]:
    """Yields the differences between the parameters of a rank and those of rank 0."""
    for name in dict.fromkeys([*first, *compared]):
        value, expected = compared.get(name), first.get(name)
        if value is None or expected is None:
            has, lacks = (0, rank) if value is None else (rank, 0)
            yield f"rank {has} has a parameter {name}, rank {lacks} has none"
        elif value != expected:
            yield f"rank {rank} has {name} of shape {tuple(value)}, rank 0 {tuple(expected)}"
    if compared.keys() == first.keys() and [*compared] != [*first]:
        pairs = zip(compared, first, strict=True)
        here, there = next((here, there) for here, there in pairs if here != there)
        yield f"rank {rank} has parameter {here} where rank 0 has {there}, in another order"
