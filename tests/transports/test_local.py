"""The in-process transport keeps the contract that the real one keeps."""

import numpy as np
import pytest

from atomo.errors import DeadlineExpired, PeerLost
from atomo.transports import network


def test_messages_arrive_in_order_and_whole():
    a, b = network(2)
    for value in range(3):
        a.send(1, np.full(5, value, np.uint8), "a number")
    received = [b.receive(0, 1.0, "a number") for _ in range(3)]
    assert [(m.source, m.data.tolist()) for m in received] == [(0, [v] * 5) for v in range(3)]
    assert (a.sent_bytes, b.received_bytes) == (15, 15)


def test_what_a_sender_changes_too_early_arrives_changed():
    """As it may over MPI: nothing is copied before it is received."""
    a, b = network(2)
    data = np.zeros(3, np.uint8)
    a.send(1, data, "zeros")
    data[:] = 9
    assert b.receive(0, 1.0, "zeros").data.tolist() == [9, 9, 9]


def test_what_was_received_is_the_receivers_own():
    a, b, c = network(3)
    data = np.zeros(3, np.uint8)
    a.send(1, data, "zeros")
    a.send(2, data, "zeros")
    b.receive(0, 1.0, "zeros").data[:] = 9
    assert not data.any()
    assert not c.receive(0, 1.0, "zeros").data.any()


def test_a_message_of_another_source_waits_for_its_turn():
    a, b, c = network(3)
    a.send(2, np.zeros(1, np.uint8), "from a")
    b.send(2, np.ones(1, np.uint8), "from b")
    assert c.receive(1, 1.0, "from b").source == 1
    assert c.receive(None, 1.0, "from a").source == 0


def test_a_wait_ends_at_its_deadline_and_says_what_for():
    _, b = network(2)
    with pytest.raises(DeadlineExpired, match=r"rank 1 waited 0\.01 s for the weights"):
        b.receive(0, 0.01, "the weights")


def test_an_abort_wakes_everybody():
    a, b = network(2)
    a.abort(6)
    with pytest.raises(PeerLost, match="aborted with 6"):
        b.receive(0, 1.0, "anything")
