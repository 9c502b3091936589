"""Ranks without a master that die at any moment: those that are left take the same steps, of the
same ranks, and each gradient counts once.
"""

import pytest
from crew_schedules import WAYS, Ship, check
from mortal import Mortal
from selection import slow_but
from support import together

from atomo.comm_types import REDUCTIONS, REPEATING
from atomo.communicators import Reduction, Report
from atomo.communicators.crew.frames import (
    read_standing,
    read_verdict,
    standing_frame,
    verdict_frame,
)
from atomo.communicators.crew.standing import Standing, Verdict, judge
from atomo.errors import FrameError

REPORTS = {rank: Report(float(rank), 2.0, 3.0, 0.1, 0.2, 0.3, 0.4) for rank in range(4)}


def test_random_schedules(everything):
    seeds = range(60 if everything else 20)
    died, lost = (sum(one) for one in zip(*map(check, seeds), strict=True))
    # Some die where their gradient is in no step, and some where it is.
    assert died > lost > 5


@pytest.mark.parametrize("way", slow_but([1, 3], range(len(WAYS))))
@pytest.mark.parametrize("breaths", slow_but([0, 8], range(0, 16, 2)))
def test_a_step_goes_on_with_those_who_are_left(way, breaths):
    ship = Ship(4, steps=3, way=way, seed=0)
    ship.ends[2] = Mortal(ship.wires[2], breaths)
    together([lambda r=r: ship.sail(r) for r in range(4)], lambda: ship.wires[0].abort(1))
    first = ship.logs[0]
    assert [2 in counted for counted in first.counted] == sorted(
        (2 in counted for counted in first.counted), reverse=True
    )
    lost = [book[2] for book in ship.books]
    assert lost == [
        int(2 not in counted and book[0] == 4)
        for counted, book in zip(first.counted, ship.books, strict=True)
    ]
    assert all(ship.logs[rank].weights.equal(first.weights) for rank in (1, 3))


def test_what_one_who_is_left_has_taken_all_take():
    standings = {0: Standing(3, {}), 2: Standing(4, REPORTS), 3: Standing(3, {})}
    verdict = judge(standings)
    assert (verdict.step, verdict.members, verdict.edge) == (4, (0, 2, 3), 6)
    assert verdict.reports == REPORTS


def test_standings_and_verdicts_travel():
    standing, verdict = Standing(7, REPORTS), Verdict(7, REPORTS, (0, 2, 3))
    assert read_standing(standing_frame(standing, 1, 2), 4) == standing
    assert read_verdict(verdict_frame(verdict, 2), 4) == verdict
    assert read_standing(standing_frame(Standing(0, {}), 0, 1), 4) == Standing(0, {})
    with pytest.raises(FrameError):
        read_verdict(verdict_frame(verdict, 2), 3)
    with pytest.raises(FrameError, match=r"different ones in 0\.\.3 are due, in order"):
        read_verdict(verdict_frame(Verdict(7, REPORTS, (2, 0)), 2), 4)


def test_those_that_repeat_are_those_that_take_back():
    own = {n for n, one in REDUCTIONS.items() if one.take_back is not Reduction.take_back}
    assert own == {*REPEATING}


def test_rank_0_is_not_outlived():
    ship = Ship(3, steps=3, way=0, seed=0)
    ship.ends[0] = Mortal(ship.wires[0], 5)
    ends: list[str] = []

    def body(rank: int) -> None:
        try:
            ship._sail(rank)
        except Exception as error:
            ends.append(str(error))

    together([lambda r=r: body(r) for r in range(3)])
    assert len(ends) == 3
    assert sum("rank 0 is gone" in end for end in ends) >= 2
