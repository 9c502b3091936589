"""Encoding during passes delays them by the measured slowdown, and ends with the measurement."""

from collections.abc import Callable, Sequence
from threading import active_count

import pytest
import torch

from atomo.codecs import make_codec
from atomo.fusion import Bucket, plan
from atomo.options.grouping import ONE
from atomo.planning.costs import SingleRank
from atomo.planning.probe import SynchronizedTimer, measure_slowing
from atomo.planning.probe.pass_profile import Push
from atomo.planning.probe.slowing import run_repeatedly

CPU = torch.device("cpu")


class Steps:
    """A rank's steps, which do nothing."""

    workers, computes = 1, True

    def __init__(self) -> None:
        self.taken = 0
        self.buckets: Sequence[Bucket] = plan([("p", torch.Size([8]))], make_codec("sgd"), ONE)

    def run(self, step: int, push: Push) -> None:
        self.taken += 1

    def update(self, step: int) -> None:
        pass


@pytest.mark.parametrize(("beside_s", "slowing"), [(2.0, 0.0), (2.5, 0.25), (9.0, 1.0)])
def test_the_delay_is_a_share_of_what_was_encoded(
    monkeypatch: pytest.MonkeyPatch, beside_s: float, slowing: float
) -> None:
    """Two passes take 2 s alone; one encoding takes 1 s, and the clock counts 2 s with both."""
    seconds = iter([2.0, 2.0, beside_s])

    def slowest_s(self: SynchronizedTimer, work: Callable[[], object]) -> float:
        work()
        return next(seconds)

    def gather(self: SynchronizedTimer, numbers: Sequence[float], label: str) -> list[list[float]]:
        assert label == "encodings"
        return [[2.0]]

    monkeypatch.setattr(SynchronizedTimer, "slowest_s", slowest_s)
    monkeypatch.setattr(SynchronizedTimer, "gather", gather)
    steps = Steps()
    assert measure_slowing(steps, SynchronizedTimer(SingleRank()), CPU, 2) == slowing
    assert steps.taken == 4


def test_what_repeats_beside_a_block_ends_with_it() -> None:
    before = active_count()
    with run_repeatedly(lambda: None) as count:
        while count() < 3:
            pass
    assert active_count() == before


def test_what_fails_beside_a_block_is_told() -> None:
    with pytest.raises(ZeroDivisionError), run_repeatedly(lambda: 1 / 0):
        pass
