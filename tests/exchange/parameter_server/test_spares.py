"""Spares that take the places of workers that die: they join between two steps, as everybody else
learns of it, and every gradient and its images count once.
"""

import pytest
import torch
from support.harness import together
from support.server_harness import ENTRIES, ServerHarness
from support.server_schedules import ScheduleCounts, check, working

from atomo.errors import TooFewWorkers
from atomo.exchange import Client, GradientCounts


def killed(harness: ServerHarness, worker: int) -> None:
    harness.transports[worker].exit_rank(137)


def test_a_spare_joins_at_the_next_step_and_all_are_told_alike():
    harness = ServerHarness(workers=2, needed=2, spares=1)
    one, three = harness.client(1), harness.client(3)
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    assert one.pull().workers == (1, 2)
    harness.answer(one, 1)
    killed(harness, 2)
    assert [*harness.server.collect(harness.sum)] == [1]
    assert harness.server.gradient_counts() == GradientCounts(
        asked=2, used=1, late=0, lost=1, under_way=0
    )
    assert harness.server.image_counts() == GradientCounts(13, used=6, late=0, lost=7, under_way=0)
    harness.server.broadcast(2, torch.full((ENTRIES,), 2.0))
    orders = one.pull(), three.pull()
    assert [(order.step, order.workers) for order in orders] == [(2, (1, 3))] * 2
    assert all(order.weights is not None and bool((order.weights == 2).all()) for order in orders)
    told = harness.server.take_notes()
    assert told == [
        "worker 2 is gone; 1 of 2 workers continue, and a spare takes its place at the next step",
        "worker 3, a spare, takes part from step 2 on",
    ]


def test_no_more_places_are_promised_than_there_are_spares():
    harness = ServerHarness(workers=3, needed=3, spares=1)
    one = harness.client(1)
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    one.pull()
    harness.answer(one, 1)
    for worker in (2, 3):
        killed(harness, worker)
    assert [*harness.server.collect(harness.sum)] == [1]
    told = harness.server.take_notes()
    assert [("a spare takes its place" in note, "share its samples" in note) for note in told] == [
        (True, False),
        (False, True),
    ]


def test_where_all_have_died_spares_begin_the_step_anew():
    harness = ServerHarness(workers=2, needed=2, spares=2)
    harness.server.broadcast(1, torch.ones(ENTRIES))
    for worker in (1, 2):
        killed(harness, worker)
    counted: list[int] = []

    def lead() -> None:
        counted.extend(harness.server.collect(harness.sum))
        harness.server.stop()

    together([lead, *working(harness, 3, 4)], lambda: harness.transports[0].abort(1))
    assert counted == [3, 4]
    assert harness.server.gradient_counts() == GradientCounts(
        asked=4, used=2, late=0, lost=2, under_way=0
    )
    assert harness.shared == {(1, 3): (3, 4), (1, 4): (3, 4)}


def test_a_spare_that_is_gone_takes_no_place_and_too_few_are_too_few():
    harness = ServerHarness(workers=2, needed=2, spares=1, min_workers=2)
    one = harness.client(1)
    killed(harness, 3)
    harness.server.broadcast(1, torch.ones(ENTRIES))
    one.pull()
    harness.answer(one, 1)
    killed(harness, 2)
    with pytest.raises(TooFewWorkers, match=r"worker \[2, 3\] of 3 died, which leaves 1"):
        harness.server.collect(harness.sum)
    assert "spare 3 is gone; 0 are left" in harness.server.take_notes()


def test_who_is_no_member_is_not_heard():
    harness = ServerHarness(workers=1, needed=1, spares=1)
    harness.server.broadcast(1, torch.ones(ENTRIES))
    harness.answer(harness.client(2), 2)
    one = harness.client(1)
    one.pull()
    harness.answer(one, 1)
    assert [*harness.server.collect(harness.sum)] == [1]
    assert harness.sum.nonzero().flatten().tolist() == [1]


def test_a_spare_begins_with_what_the_first_of_the_others_lends():
    harness = ServerHarness(workers=3, needed=2, spares=1, lends=True)
    one, two, three = (harness.client(worker) for worker in (1, 2, 3))
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker, client in ((1, one), (3, three), (2, two)):
        client.pull()
        harness.answer(client, worker, images=4)
        if worker == 3:
            assert [*harness.server.collect(harness.sum)] == [1, 3]
    killed(harness, 1)

    def lead() -> None:
        harness.step(2)
        harness.step(3)
        harness.end()

    def work(worker: int, client: Client) -> None:
        # A message goes before a death: the master notices it in step 2 only if no gradient of
        # that step is there before it waits for one.
        harness.transports[0]._inboxes[0].wait_until_asked()
        harness.work(worker, client)

    bodies = [lead, lambda: work(2, two), lambda: work(3, three)]
    together([*bodies, *working(harness, 4)], lambda: harness.transports[0].abort(1))
    assert harness.spare_state == {4: 2.0}
    assert harness.shared[3, 4] == (2, 3, 4)


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 40), marks=pytest.mark.slow)], ids=len
)
def test_whoever_joins_leaves_or_is_late_each_gradient_and_image_counts_once(seeds):
    came = sum(map(check, seeds), ScheduleCounts())
    assert came.joined
    assert came.late
    assert came.lost
