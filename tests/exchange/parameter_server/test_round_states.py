"""States in the middle of a round: complete sets, too many states, and the counts beside them."""

import pytest
import torch

from atomo.errors import FrameError
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.members.round_states import RoundStates
from atomo.exchange.state import state_frame
from atomo.transports import Message, network
from atomo.wire import Header, Kind


def message(worker: int, value: float) -> Message:
    """Returns a state with one number."""
    return Message(worker, state_frame(Header(Kind.STATE, 1, worker), {"x": torch.tensor(value)}))


def values(states: RoundStates) -> list[float]:
    """Returns the numbers of the next complete set."""
    return [float(state["x"]) for state in states.take()]


def test_a_set_has_the_states_of_all_living_workers_in_the_order_of_their_steps():
    members = Members(network(4)[0], 1, 600.0)
    states = RoundStates(members)
    states.open(4)
    for worker, value in ((1, 10.0), (1, 11.0), (2, 20.0)):
        states.store(message(worker, value))
    assert values(states) == []
    members.living.remove(3)  # its states are not awaited any more
    assert values(states) == [10.0, 20.0]
    states.store(message(2, 21.0))
    assert values(states) == [11.0, 21.0]
    states.store(message(1, 12.0))
    states.open(4)
    states.store(message(2, 22.0))
    assert values(states) == []  # the states of the last round are dropped


def test_more_states_than_a_round_has_steps_are_refused():
    states = RoundStates(Members(network(3)[0], 1, 600.0))
    states.open(3)
    for value in (1.0, 2.0):
        states.store(message(1, value))
    with pytest.raises(FrameError, match=r"sent 3 states in a round.*at most 2"):
        states.store(message(1, 3.0))


def test_counts_before_a_step_lack_what_living_workers_were_asked_for():
    assignments = Assignments()
    assignments.give({1: 5, 2: 4, 3: 4}, 1)
    assignments.complete(1)
    assignments.lose(3)
    assert assignments.counts_before == [(1, 0, 0, 1, 0), (4, 0, 0, 4, 0)]
    assignments.complete_late(2)
    assignments.close_step([1])
    assignments.give({1: 7, 2: 6}, 2)
    assert [asked for asked, *_ in assignments.counts] == [5, 26]
    assert [asked for asked, *_ in assignments.counts_before] == [3, 13]
