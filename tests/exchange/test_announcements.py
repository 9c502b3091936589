"""Announcements about buckets, and the thread that makes them."""

import gc
import threading

import numpy as np
import pytest

from atomo.errors import FrameError
from atomo.exchange.engine.announcements import (
    AnnouncementKind,
    read_announcement,
    write_announcement,
)
from atomo.exchange.engine.stages import SerialExecutor


@pytest.mark.parametrize("parameters", [1, 7, 8, 9, 300])
def test_a_message_comes_back(parameters):
    marked = [place % 3 == 0 for place in range(parameters)]
    body = np.arange(5, dtype=np.uint8)
    message = read_announcement(
        write_announcement(AnnouncementKind.ENCODED, marked, body), parameters
    )
    assert (message.kind, list(message.marked)) == (AnnouncementKind.ENCODED, marked)
    assert message.body.tolist() == [0, 1, 2, 3, 4]


def test_a_message_is_never_empty():
    assert write_announcement(AnnouncementKind.ENCODED, [False], np.empty(0, np.uint8)).size == 2


@pytest.mark.parametrize("data", [b"", b"\0", b"\x03\0\0", b"\xff\0\0"])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(FrameError, match="no message about 9 parameters"):
        read_announcement(np.frombuffer(data, np.uint8), 9)


def test_a_serial_executor_keeps_the_order_and_hands_errors_over():
    executor, done = SerialExecutor("executor-of-this-test"), []
    gate = threading.Event()
    first = executor.submit(gate.wait)
    rest = [executor.submit(lambda one=one: done.append(one)) for one in range(100)]
    broken = executor.submit(lambda: 1 // 0)
    assert not done
    gate.set()
    assert first.result() is True
    with pytest.raises(ZeroDivisionError):
        broken.result()
    assert all(one.result() is None for one in rest)
    assert done == [*range(100)]


@pytest.mark.slow
def test_a_serial_executor_that_nobody_holds_ends_its_thread():
    executor = SerialExecutor("executor-to-be-forgotten")
    thread = executor.submit(threading.current_thread).result()
    assert thread.is_alive()
    assert thread.daemon
    del executor
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
