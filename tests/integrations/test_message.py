"""Messages about buckets, and the thread that makes them."""

import gc
import threading

import numpy as np
import pytest

from atomo.errors import FrameError
from atomo.integrations.lane import Lane
from atomo.integrations.message import Kind, read, write


@pytest.mark.parametrize("parameters", [1, 7, 8, 9, 300])
def test_a_message_comes_back(parameters):
    marked = [place % 3 == 0 for place in range(parameters)]
    body = np.arange(5, dtype=np.uint8)
    message = read(write(Kind.CODED, marked, body), parameters)
    assert (message.kind, list(message.marked)) == (Kind.CODED, marked)
    assert message.body.tolist() == [0, 1, 2, 3, 4]


def test_a_message_is_never_empty():
    assert write(Kind.CODED, [False], np.empty(0, np.uint8)).size == 2


@pytest.mark.parametrize("data", [b"", b"\0", b"\x03\0\0", b"\xff\0\0"])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(FrameError, match="no message about 9 parameters"):
        read(np.frombuffer(data, np.uint8), 9)


def test_a_lane_keeps_the_order_and_hands_errors_over():
    lane, done = Lane("lane-of-this-test"), []
    gate = threading.Event()
    first = lane.submit(gate.wait)
    rest = [lane.submit(lambda one=one: done.append(one)) for one in range(100)]
    broken = lane.submit(lambda: 1 // 0)
    assert not done
    gate.set()
    assert first.result() is True
    with pytest.raises(ZeroDivisionError):
        broken.result()
    assert all(one.result() is None for one in rest)
    assert done == [*range(100)]


def test_a_lane_that_nobody_holds_ends_its_thread():
    lane = Lane("lane-to-be-forgotten")
    thread = lane.submit(threading.current_thread).result()
    assert thread.is_alive()
    assert thread.daemon
    del lane
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
