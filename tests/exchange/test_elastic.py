"""Ranks without a master that die at any moment, and spares that take their places: those that are
left take the same steps, of the same ranks, and each gradient counts once.
"""

from dataclasses import replace

import pytest
from support.crashing_transport import CrashingTransport
from support.elastic_schedules import WAYS, ElasticJob, ScheduleCounts, check, play
from support.harness import together
from support.selection import slow_but

from atomo.config.comm_types import REDUCTIONS, REPEATING
from atomo.errors import FrameError
from atomo.exchange import Reduction, Report
from atomo.exchange.elastic.frames import (
    control_frame,
    progress_frame,
    read_progress,
    read_verdict,
    verdict_frame,
)
from atomo.exchange.elastic.progress import (
    RankProgress,
    Verdict,
    decide,
    fill_slots,
    membership_notes,
)
from atomo.wire import Kind

REPORTS = {rank: Report(float(rank), 2.0, 3.0, 0.1, 0.2, 0.3, 0.4) for rank in range(4)}


@pytest.mark.slow
def test_random_schedules(at_length):
    came = sum(map(check, range(60 if at_length else 30)), ScheduleCounts())
    # Some die where their gradient is in no step, and some where it is.
    assert came.died > came.lost > 5
    assert min(came.joined, came.died_joined, came.died_waiting) > 0


@pytest.mark.parametrize("way", slow_but([1, 3], range(len(WAYS))))
@pytest.mark.parametrize("breaths", slow_but([0, 8], range(0, 16, 2)))
def test_a_step_goes_on_with_those_who_are_left(way, breaths):
    job = ElasticJob(4, steps=3, way=way, seed=0)
    job.ends[2] = CrashingTransport(job.wires[2], breaths)
    play(job)
    first = job.logs[0]
    assert [2 in counted for counted in first.counted] == sorted(
        (2 in counted for counted in first.counted), reverse=True
    )
    lost = [book[2] for book in job.books]
    assert lost == [
        int(2 not in counted and book[0] == 4)
        for counted, book in zip(first.counted, job.books, strict=True)
    ]
    assert all(job.logs[rank].weights.equal(first.weights) for rank in (1, 3))


@pytest.mark.slow
def test_who_is_stopped_is_killed_and_nobody_who_waits_for_it():
    job = ElasticJob(4, steps=3, way=3, seed=0, spares=1)
    job.hangs, job.patience_s = {2: 2}, 3.0
    play(job)
    first = job.logs[0]
    assert first.counted == [(0, 1, 2, 3), (0, 1, 3), (0, 1, 3, 4)]
    assert first.notes[0].startswith("rank 0 waited 3 s for bucket 0 of step 2 of rank ")
    assert first.notes[0].endswith("; see --timeout; stopped or stuck ranks are killed")
    assert len(first.notes) == 3, first.notes
    assert all(job.logs[rank].weights.equal(first.weights) for rank in (1, 3, 4))


@pytest.mark.parametrize("way", slow_but([1, 3], range(len(WAYS))))
def test_a_spare_takes_the_place_of_the_dead_from_the_next_step_on(way):
    job = ElasticJob(3, steps=6, way=way, seed=0, least=3, spares=3)
    job.deaths, job.kills = {2: 2, 4: 4}, {3: 2}
    play(job)
    first = job.logs[0]
    assert first.counted == [(0, 1, 2), (0, 1), (0, 1, 4), (0, 1), (0, 1, 5), (0, 1, 5)]
    assert [book[:3] for book in job.books] == [
        (3, len(who), 3 - len(who)) for who in first.counted
    ]
    assert first.notes.pop(first.notes.index("spare 3 is gone; 2 are left"))  # whenever it is heard
    assert first.notes == [
        "rank 2 is gone; 2 of 3 ranks continue, and a spare takes its place from step 3 on",
        "rank 4, a spare, takes part from step 3 on",
        "rank 4 is gone; 2 of 3 ranks continue, and a spare takes its place from step 5 on",
        "rank 5, a spare, takes part from step 5 on",
    ]
    for rank in (1, 5):
        assert job.logs[rank].weights.equal(first.weights)


def test_a_spare_that_dies_as_it_joins_is_a_death_as_any_other():
    job = ElasticJob(3, steps=5, way=0, seed=0, spares=2)
    job.deaths = {2: 2}
    job.ends[3] = CrashingTransport(
        job.wires[3], 1
    )  # it hears of its place, and says nothing any more
    play(job)
    assert job.logs[0].counted == [(0, 1, 2), (0, 1), (0, 1), (0, 1, 4), (0, 1, 4)]
    assert [book[:3] for book in job.books[2:4]] == [(3, 2, 1), (3, 3, 0)]


def test_those_who_wait_count_among_those_who_must_be_left():
    job = ElasticJob(3, steps=5, way=0, seed=0, least=3, spares=1)
    job.deaths = {2: 2, 1: 3}
    play(job)
    first = job.logs[0]
    assert (first.counted, first.too_few) == ([(0, 1, 2), (0, 1)], True)
    assert job.logs[3].counted == []
    assert job.logs[3].weights.equal(first.weights)


def test_no_place_goes_to_who_died_before_all_met():
    job = ElasticJob(3, steps=5, way=0, seed=0, least=3, spares=1)
    job.deaths, job.kills = {2: 2}, {3: 3}
    play(job)
    assert [job.logs[rank].counted for rank in (0, 1)] == [[(0, 1, 2), (0, 1)]] * 2
    assert [job.logs[rank].too_few for rank in (0, 1)] == [True, True]
    told = job.logs[0].notes
    assert told[1:] == ["spare 3 is gone; 0 are left"], told


@pytest.mark.slow
def test_nothing_is_sent_for_spares_while_nobody_dies():
    jobs = ElasticJob(3, steps=3, way=1, seed=0), ElasticJob(3, steps=3, way=1, seed=0, spares=2)
    for job in jobs:
        play(job)
    told = [[wire.sent_bytes for wire in job.wires[:3]] for job in jobs]
    end = control_frame(Kind.STOP, 3, 0).size
    assert told[1] == [told[0][0] + 2 * end, *told[0][1:]]
    assert [wire.sent_bytes for wire in jobs[1].wires[3:]] == [0, 0]


def test_what_one_who_is_left_has_taken_all_take():
    standings = {0: RankProgress(3, {}), 2: RankProgress(4, REPORTS), 3: RankProgress(3, {})}
    verdict = decide(standings)
    assert (verdict.step, verdict.members, verdict.first_step) == (4, (0, 2, 3), 6)
    assert verdict.reports == REPORTS


def test_those_who_wait_take_the_places_that_are_free_the_lowest_rank_first():
    verdict = decide({0: RankProgress(4, {}), 2: RankProgress(4, {})}, waiting=[5, 6], first_step=5)
    assert (verdict.first_step, verdict.waiting) == (5, (5, 6))
    assert fill_slots(verdict, slots=3) == replace(verdict, members=(0, 2, 5), waiting=(6,))
    assert fill_slots(verdict, slots=5) == replace(verdict, members=(0, 2, 5, 6), waiting=())
    assert fill_slots(verdict, slots=2) == verdict


def test_no_more_places_are_promised_than_spares_wait():
    verdict = Verdict(4, {}, (0,), 6, (3,))
    assert [note.split(", and ")[1] for note in membership_notes((0, 1, 2), verdict, 3)] == [
        "a spare takes its place from step 6 on",
        "share its samples from step 6 on",
    ]


def test_standings_and_verdicts_travel():
    standing, verdict = RankProgress(7, REPORTS), Verdict(7, REPORTS, (0, 2), 9, (3,))
    assert read_progress(progress_frame(standing, 1, 2), 4) == standing
    assert read_verdict(verdict_frame(verdict, 2), 4) == verdict
    assert read_progress(progress_frame(RankProgress(0, {}), 0, 1), 4) == RankProgress(0, {})
    with pytest.raises(FrameError):
        read_verdict(verdict_frame(verdict, 2), 3)
    with pytest.raises(FrameError, match=r"ascending ranks in 0\.\.3 are due"):
        read_verdict(verdict_frame(Verdict(7, REPORTS, (2, 0), 9), 2), 4)


def test_those_that_repeat_are_those_that_take_back():
    own = {n for n, one in REDUCTIONS.items() if one.take_back is not Reduction.take_back}
    assert own == {*REPEATING}


def test_rank_0_is_not_outlived():
    job = ElasticJob(3, steps=3, way=0, seed=0)
    job.ends[0] = CrashingTransport(job.wires[0], 5)
    ends: list[str] = []

    def body(rank: int) -> None:
        try:
            job._sail(rank)
        except Exception as error:
            ends.append(str(error))

    together([lambda r=r: body(r) for r in range(3)])
    assert len(ends) == 3
    assert sum("rank 0 is gone" in end for end in ends) >= 2
