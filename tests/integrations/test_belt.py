"""Stages beside each other, and a step of averages that goes through them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from atomo.communicators.direct import Direct
from atomo.errors import Diverged
from atomo.integrations.belt import Belt
from atomo.integrations.chunk import Chunk
from atomo.integrations.making import Choice, make_exchange
from atomo.transports.local import network

LONG = 60.0  # seconds, which only a hang takes


def test_each_stage_keeps_the_order_and_hands_its_result_on():
    belt, seen = Belt("first-of-test", "second-of-test"), []

    def add(number: int) -> int:
        seen.append(number)
        return number + 1

    futures = [belt.submit(lambda n=n: n, add, done=lambda: None) for n in range(100)]
    assert [one.result(LONG) for one in futures] == [*range(1, 101)]
    assert seen == [*range(100)]


def test_the_next_work_is_in_one_stage_while_the_last_is_in_the_next():
    belt, begun = Belt("first-of-test", "second-of-test"), threading.Event()
    slow = belt.submit(lambda: None, lambda _: begun.wait(LONG), done=lambda: None)
    belt.submit(begun.set, lambda _: None, done=lambda: None).result(LONG)
    assert slow.result(LONG) is True


def test_an_error_ends_its_own_work_alone_and_counts_as_done():
    belt, done = Belt("first-of-test", "second-of-test"), []
    broken = belt.submit(lambda: 1 // 0, done.append, done=lambda: done.append("broken"))
    late = belt.submit(lambda: 1, lambda one: one // 0, done=lambda: done.append("late"))
    whole = belt.submit(lambda: 1, lambda one: one, done=lambda: done.append("whole"))
    for one in (broken, late):
        with pytest.raises(ZeroDivisionError):
            one.result(LONG)
    assert whole.result(LONG) == 1
    assert done == ["broken", "late", "whole"]


def test_what_is_wrong_with_one_part_of_a_step_keeps_no_rank_waiting_for_the_others():
    """The rank that is told first must not stop before the others have all parts of the step."""

    def rank(transport: Any) -> list[str]:
        collective = Direct(transport, LONG)
        parameters = {name: torch.zeros(9000) for name in "abc"}
        exchange = make_exchange(Choice("topk(ratio=0.1)"), collective, parameters)
        errors = []
        for _ in range(2):
            for number, name in enumerate(parameters):
                bad = transport.rank == 1 and name == "a"
                gradient = torch.full((9000,), np.nan if bad else 1.0)
                over = threading.Event()
                exchange.submit(Chunk(number, {name: gradient}), 1.0, name == "c", over.set)
                assert transport.rank != 0 or over.wait(LONG)
            with pytest.raises(Diverged) as error:
                exchange.finish()
            errors.append(str(error.value))
        assert exchange.idle
        return errors

    transports = network(3)
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(rank, transports)]
    assert found == [["rank 1: the gradient of a is no longer finite"] * 2] * 3
