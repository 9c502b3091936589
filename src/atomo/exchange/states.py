"""Gather and scatter of states between rank 0 and all other ranks, for checkpoints and resumes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from torch import Tensor

from atomo.errors import FrameError
from atomo.exchange.state import State, read_state, state_frame
from atomo.transports import Transport
from atomo.wire import Header, Kind, read_header

__all__ = ["InitialState", "gather_states", "receive_state", "scatter_states"]

FIRST: Final = 0  # the rank


@final
@dataclass(frozen=True)
class InitialState:
    """The state that rank 0 gives a rank to begin with."""

    step: int
    state: dict[str, Tensor]


def gather_states(
    transport: Transport, state: State, step: int, timeout_s: float, label: str
) -> list[dict[str, Tensor]]:
    """Gathers the state of every rank at rank 0, in order; an empty list elsewhere.

    Raises:
        DeadlineExpired: a rank did not receive_state part; the message names it.
        FrameError: a rank sent something else, or of another step.
    """
    if transport.rank != FIRST:
        header = Header(Kind.STATE, step, transport.rank + 1)
        transport.send(FIRST, state_frame(header, state), label)
        return []
    states = [dict(state)]
    for rank in range(1, transport.size):
        frame = transport.receive(rank, timeout_s, f"{label} of rank {rank}").data
        if (header := read_header(frame)) != Header(Kind.STATE, step, rank + 1):
            raise FrameError(
                f"rank {rank} sent {header.kind.name} of step {header.step} where {label} of step "
                f"{step} was expected"
            )
        states.append(read_state(frame))
    return states


def scatter_states(transport: Transport, states: Sequence[State], step: int) -> None:
    """Gives each other rank its own of `states`, which has rank 0's first; those that there is none
    for get nothing.
    """
    for rank in range(1, len(states)):
        header = Header(Kind.STATE, step, rank + 1)
        frame = state_frame(header, states[rank])
        transport.send(rank, frame, f"the initial state for rank {rank}")


def receive_state(transport: Transport, timeout_s: float) -> InitialState:
    """Receives the state that `scatter_states` sent this rank.

    Raises:
        DeadlineExpired: no message of rank 0 arrived.
        FrameError: something else did.
    """
    frame = transport.receive(FIRST, timeout_s, "the initial state, from rank 0").data
    return InitialState(read_header(frame).step, read_state(frame))
