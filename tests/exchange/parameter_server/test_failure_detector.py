"""The detection of a hung worker, with a clock and processor times that the test sets."""

from itertools import count

import pytest
import torch

from atomo.errors import DeadlineExpired, PeerLost
from atomo.exchange.parameter_server.members.failure_detector import (
    CHECKS_PER_LIMIT,
    FailureDetector,
)
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.step_deadline import StepDeadline, StepLimits
from atomo.transports import network
from atomo.wire import Bytes

TIMEOUT_S = 300.0
SOON_S = 15.0  # its twentieth


class SimulatedWorkers:
    """Workers with a simulated clock and simulated processor times."""

    def __init__(self, workers: int = 3, timeout_s: float = TIMEOUT_S) -> None:
        self.now = 1000.0
        self.used: dict[int, float | None] = dict.fromkeys(range(1, workers + 1), 0.0)
        self.workers = [*self.used]
        self.failure_detector = FailureDetector(
            timeout_s, lambda worker: self.used[worker], lambda: self.now
        )

    def steps(self, count: int, took_s: float) -> None:
        """Steps in which all answer."""
        for _ in range(count):
            for worker in self.workers:
                self.failure_detector.restart_timeout(worker)
                self.failure_detector.start_gradient(worker)
            self.pass_s(took_s)
            for worker in self.workers:
                self.failure_detector.record_message(worker)
                self.failure_detector.complete_gradient(worker)

    def pass_s(
        self, seconds: float, computing: tuple[int, ...] = (), step_s: float = 0.5
    ) -> list[int]:
        """Lets time pass, and checks as the master does; returns the first workers
        taken for hung.
        """
        end = self.now + seconds
        while self.now < end:
            self.now += step_s
            for worker in computing:
                self.used[worker] = (self.used[worker] or 0.0) + 0.01
            if found := self.failure_detector.hung(self.workers):
                return found
        return []


def given(simulated: SimulatedWorkers) -> None:
    for worker in simulated.workers:
        simulated.failure_detector.restart_timeout(worker)
        simulated.failure_detector.start_gradient(worker)


def test_one_that_does_nothing_is_hung_long_before_the_timeout():
    simulated = SimulatedWorkers()
    simulated.steps(6, 0.5)
    given(simulated)
    began = simulated.now
    assert simulated.pass_s(TIMEOUT_S, computing=(1, 3)) == [2]
    assert SOON_S <= simulated.now - began <= SOON_S * (1 + 2 / CHECKS_PER_LIMIT)


def test_one_that_computes_is_never_hung_however_slow_it_is():
    simulated = SimulatedWorkers()
    simulated.steps(6, 0.5)
    given(simulated)
    assert simulated.pass_s(0.99 * TIMEOUT_S, computing=(1, 2, 3)) == []
    assert simulated.failure_detector.overdue(simulated.workers) == []
    simulated.pass_s(0.02 * TIMEOUT_S, computing=(1, 2, 3))
    assert simulated.failure_detector.overdue(simulated.workers) == [1, 2, 3]  # the bound of all


def test_one_that_sends_is_not_hung():
    simulated = SimulatedWorkers()
    simulated.steps(6, 0.5)
    given(simulated)
    for _ in range(10):
        assert simulated.pass_s(0.9 * SOON_S, computing=(1, 3)) == []
        simulated.failure_detector.record_message(2)


@pytest.mark.parametrize(("took_s", "silence_limit_s"), [(0.01, 15.0), (2.0, 40.0), (60.0, 300.0)])
def test_the_time_adapts_to_what_gradients_take(took_s, silence_limit_s):
    simulated = SimulatedWorkers()
    simulated.steps(1, 100.0)  # the first step compiles, so it does not count
    simulated.steps(20, took_s)
    step_s = max(took_s, 0.5)  # as the world's clock ticks
    assert simulated.failure_detector.silence_limit_s == pytest.approx(
        max(silence_limit_s, min(TIMEOUT_S, 20 * step_s))
    )


def test_nobody_is_judged_before_enough_is_known():
    simulated = SimulatedWorkers()
    simulated.steps(2, 0.5)
    given(simulated)
    assert simulated.pass_s(TIMEOUT_S - 1) == []


def test_nobody_is_judged_whose_processor_time_is_not_known():
    simulated = SimulatedWorkers()
    simulated.used[2] = None
    simulated.steps(6, 0.5)
    given(simulated)
    assert simulated.pass_s(TIMEOUT_S - 1, computing=(1, 3)) == []


def test_a_master_that_was_held_up_begins_to_count_anew():
    """A laptop's lid, a stopped container: all were asleep, and it wakes first."""
    simulated = SimulatedWorkers()
    simulated.steps(6, 0.5)
    given(simulated)
    simulated.pass_s(0.9 * SOON_S, computing=(1, 3))
    simulated.now += 3600.0
    assert simulated.failure_detector.hung(simulated.workers) == []
    assert simulated.pass_s(0.9 * SOON_S, computing=(1, 2, 3)) == []


def test_the_slowest_is_named_with_how_much_slower_it_is():
    simulated = SimulatedWorkers(workers=4)
    assert simulated.failure_detector.slowest() == (0, 1.0)
    for _ in range(8):
        given(simulated)
        for worker in (1, 2, 4, 3):
            simulated.now += 1.0 if worker < 3 else 0.5
            simulated.failure_detector.complete_gradient(worker)
    worker, slowness = simulated.failure_detector.slowest()
    assert worker == 3
    assert slowness == pytest.approx(3.0 / 2.25)


def test_a_zombie_that_wakes_is_not_heard():
    """The rank stays unused: a message from it belongs to an earlier epoch."""
    wires = network(3)
    members = Members(wires[0], 1, 60.0)
    members._remove(PeerLost(2, "waiting"))
    wires[2].send(0, word(), "a word of the dead")
    wires[1].send(0, word(), "a word")
    assert members.receive([1], "words") is None
    message = members.receive([1], "words")
    assert message is not None
    assert message.source == 1
    assert members.living == [1]


def word() -> Bytes:
    return torch.zeros(1, dtype=torch.uint8).numpy()


def test_all_that_are_silent_for_nearly_as_long_are_silent_together():
    wires = network(3)
    members, looks = Members(wires[0], 1, 0.05), count()
    # At each look a little later, however long this process is held up between the two orders.
    members.failure_detector._clock = lambda: 1e-3 * next(looks)
    for worker in (1, 2):
        members.send(worker, word(), "an order")

    def wait() -> None:
        while True:
            members.receive([1, 2], "words")

    with pytest.raises(DeadlineExpired, match=r"rank 0 waited 0.05 s for words; see --timeout"):
        wait()
    assert members.living == [1, 2]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_closes_once_there_are_enough():
    closing = StepDeadline(StepLimits(), Clock())
    closing.open()
    assert closing.remaining_s(0, 2, 4) == closing.remaining_s(1, 2, 4) == float("inf")
    assert closing.remaining_s(2, 2, 4) == closing.remaining_s(4, 4, 4) == 0.0


def test_grace_waits_for_others_as_long_as_the_enough_took_times_it():
    clock = Clock()
    closing = StepDeadline(StepLimits(grace=0.5), clock)
    for opened in (100.0, 200.0):
        clock.now = opened
        closing.open()
        clock.now += 8.0
        assert closing.remaining_s(1, 2, 4) == float("inf")
        assert closing.remaining_s(2, 2, 4) == 4.0
        clock.now += 3.0
        assert closing.remaining_s(3, 2, 4) == 1.0
        assert closing.remaining_s(4, 2, 4) == 0.0  # no other gradient will come
        clock.now += 1.0
        assert closing.remaining_s(3, 2, 4) == 0.0


def test_a_step_timeout_takes_what_is_there_and_waits_for_the_first():
    clock = Clock()
    closing = StepDeadline(StepLimits(step_s=10.0, grace=5.0), clock)
    closing.open()
    clock.now = 7.0
    assert closing.remaining_s(0, 3, 4) == float("inf")
    assert closing.remaining_s(1, 3, 4) == 3.0
    assert closing.remaining_s(3, 3, 4) == 3.0  # the grace would be longer
    clock.now = 11.0
    assert closing.remaining_s(0, 3, 4) == float("inf")
    assert closing.remaining_s(1, 3, 4) == 0.0


def test_who_still_computes_an_earlier_step_is_not_waited_for_where_most_are_there():
    clock = Clock()
    closing = StepDeadline(StepLimits(step_s=10.0), clock)
    closing.open()
    assert closing.remaining_s(3, 4, 4, busy=1) == 0.0
    assert closing.remaining_s(2, 4, 4, busy=1) == 10.0  # one worker computes the open step
    assert closing.remaining_s(2, 4, 4, busy=2) == 10.0  # no more than half
    assert StepDeadline(StepLimits(), clock).remaining_s(3, 4, 4, busy=1) == float("inf")
    closing = StepDeadline(StepLimits(grace=1.0), clock)
    closing.open()
    clock.now = 5.0
    assert closing.remaining_s(2, 2, 4, busy=1) == 5.0
    assert closing.remaining_s(3, 2, 4, busy=1) == 0.0
