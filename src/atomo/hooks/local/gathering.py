"""A gather of the states of all replicas at rank 0."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from atomo.exchange.collectives.collective import Collective
from atomo.hooks.states.packed import pack, unpack

__all__ = ["gather_dicts"]


def gather_dicts(
    ranks: Collective,
    own: Mapping[str, Mapping[str, Any]],
    label: str,
    wanted: bool = True,
) -> list[dict[str, Any]] | None:
    """Gathers dictionaries of all ranks at rank 0; None on other ranks.

    Args:
        ranks: the ranks, all of which must call this.
        own: the dictionaries of this rank, with the same keys on all ranks. One entry is sent at a
            time, so that no rank but rank 0 holds more than one entry of all ranks.
        label: the name in errors.
        wanted: False if nothing is to be gathered, on all ranks.
    """
    if not wanted:
        return None
    states: list[dict[str, Any]] = [{} for _ in range(ranks.size)]
    for key, entry in own.items():
        data = np.frombuffer(pack(entry), np.uint8)
        # Read by all: what is left unread would come where the next gather is expected.
        answers = [*ranks.gather(data, f"{label} of {key}")]
        for state, answer in zip(states, answers if ranks.rank == 0 else (), strict=False):
            state[key] = unpack(answer.tobytes())
    return states if ranks.rank == 0 else None
