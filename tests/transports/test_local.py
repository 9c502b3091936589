"""The in-process transport keeps the contract that the real ones keep, and is no kinder."""

import threading

import numpy as np
import pytest
from support.harness import together
from transports.scenarios import PATIENCE_S, SCENARIOS

from atomo.errors import DeadlineExpired, PeerLost
from atomo.transports import Transport, network


@pytest.mark.parametrize("name", [*SCENARIOS])
def test_every_rank_is_content_with(name):
    transports, barrier = network(3), threading.Barrier(3)

    def body(transport: Transport) -> None:
        for act in SCENARIOS[name]:
            act(transport)
            barrier.wait(PATIENCE_S)
        transport.drain(PATIENCE_S)

    def failed() -> None:
        barrier.abort()
        transports[0].abort(1)

    together([lambda one=one: body(one) for one in transports], failed)


def test_what_a_sender_changes_too_early_arrives_changed():
    """As over MPI, nothing need be copied before the receiver waits."""
    a, b = network(2)
    data = np.zeros(3, np.uint8)
    a.send(1, data, "zeros")
    data[:] = 9
    assert b.receive(0, 1.0, "zeros").data.tolist() == [9, 9, 9]


def test_only_little_leaves_before_it_is_taken():
    a, b = network(2)
    a.send(1, np.zeros(4096, np.uint8), "a little")
    a.drain(0.0)
    a.send(1, np.zeros(4097, np.uint8), "more")
    with pytest.raises(DeadlineExpired, match=r"rank 0 waited 0 s for rank \[1\] to receive"):
        a.drain(0.0)
    for _ in range(2):
        b.receive(0, 1.0, "it")
    a.drain(0.0)


def test_a_deadline_is_one_of_the_whole_wait():
    """Messages of others do not prolong it."""
    a, b, c = network(3)
    a.send(1, np.zeros(1, np.uint8), "a word")
    with pytest.raises(DeadlineExpired, match=r"rank 1 waited 0 s for the weights"):
        b.receive(2, 0.0, "the weights")
    c.send(1, np.zeros(1, np.uint8), "the weights")
    assert b.receive(2, 0.0, "the weights").source == 2


def test_an_abort_wakes_everybody():
    a, b = network(2)
    a.send(1, np.zeros(5000, np.uint8), "words")
    a.abort(6)
    for _ in range(2):
        with pytest.raises(PeerLost, match="aborted with 6"):
            b.receive(0, 1.0, "anything")
    with pytest.raises(PeerLost, match="rank 1 is gone"):
        a.drain(1.0)
