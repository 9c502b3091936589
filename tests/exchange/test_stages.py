"""Stages that run at the same time, and a step of averages that passes through them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
import torch

from atomo.errors import Diverged
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.engine.stages import SerialExecutor, StagePipeline, StageWork
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.transports.local import network

LONG = 60.0  # seconds, which only a hang takes


@final
@dataclass(frozen=True)
class Calls(StageWork[Any, Any]):
    """Functions as the stages of a work."""

    first: Callable[[], Any]
    second: Callable[[Any], Any] = lambda encoded: encoded
    third: Callable[[Any], Any] = lambda received: None
    closed: Callable[[], None] = lambda: None

    def encode(self) -> Any:
        return self.first()

    def exchange(self, encoded: Any) -> Any:
        return self.second(encoded)

    def decode(self, received: Any) -> None:
        self.third(received)

    def close(self) -> None:
        self.closed()


def stages(encoder: Any = None, *, sequential: bool = False) -> StagePipeline:
    threads = [SerialExecutor(f"{name}-of-test") for name in ("encode", "exchange", "decode")]
    return StagePipeline(encoder or threads[0], *threads[1:], sequential=sequential)


@pytest.mark.parametrize("sequential", [False, True])
def test_each_stage_keeps_the_order_and_hands_its_result_on(sequential):
    pipeline, seen = stages(sequential=sequential), []
    works = [Calls(lambda n=n: n, lambda n: n + 1, seen.append) for n in range(100)]
    for submission in [pipeline.submit(work) for work in works]:
        submission.done.result(LONG)
    assert seen == [*range(1, 101)]


def test_works_that_several_threads_encode_are_exchanged_in_their_order():
    gate, seen = threading.Event(), []
    with ThreadPoolExecutor(2) as pool:
        pipeline = stages(pool)
        first = pipeline.submit(Calls(lambda: gate.wait(LONG), lambda _: seen.append("first")))
        later = pipeline.submit(Calls(lambda: None, lambda _: seen.append("later")))
        later.encoded.result(LONG)
        assert not later.done.done()
        gate.set()
        first.done.result(LONG)
        later.done.result(LONG)
    assert seen == ["first", "later"]


def test_the_next_work_is_in_one_stage_while_the_last_is_in_the_next():
    pipeline, begun = stages(), threading.Event()
    slow = pipeline.submit(Calls(lambda: None, lambda _: begun.wait(LONG)))
    pipeline.submit(Calls(begun.set)).done.result(LONG)
    slow.done.result(LONG)


def test_a_work_is_exchanged_again_without_being_encoded_again():
    pipeline, seen = stages(), []
    work = Calls(lambda: seen.append("encoded") or 1, third=seen.append)
    submission = pipeline.submit(work)
    submission.done.result(LONG)
    pipeline.repeat(submission, work)
    submission.done.result(LONG)
    assert seen == ["encoded", 1, 1]


@pytest.mark.parametrize("sequential", [False, True])
def test_an_error_ends_its_own_work_alone_and_closes_it(sequential):
    pipeline, closed = stages(sequential=sequential), []
    broken = Calls(lambda: 1 // 0, closed.append, closed=lambda: closed.append("broken"))
    late = Calls(lambda: 1, lambda one: one // 0, closed=lambda: closed.append("late"))
    last = Calls(lambda: 1, third=lambda one: one // 0, closed=lambda: closed.append("last"))
    whole = Calls(lambda: 1, closed=lambda: closed.append("whole"))
    submissions = [pipeline.submit(work) for work in (broken, late, last, whole)]
    for submission in submissions[:3]:
        with pytest.raises(ZeroDivisionError):
            submission.done.result(LONG)
    submissions[3].done.result(LONG)
    assert sorted(closed) == ["broken", "last", "late", "whole"]


def test_what_is_wrong_with_one_part_of_a_step_keeps_no_rank_waiting_for_the_others():
    """The rank that is told first must not stop before the others have all parts of the step."""

    def rank(transport: Any) -> list[str]:
        collective = Direct(transport, LONG)
        parameters = {name: torch.zeros(9000) for name in "abc"}
        exchange = make_exchange(HookConfig("topk(ratio=0.1)"), collective, parameters)
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
