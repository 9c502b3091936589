"""Named searches of `--fusion`, from given costs."""

import pytest

from atomo.fusion.flow import Flow, Times
from atomo.fusion.searches import SEARCHES, merged_in_two, within


def even(tensors: int, start: float) -> Flow:
    """Tensors alike, ready one after another, over a link that takes as long as they do."""
    each = tuple(Times(0.0, 1.0, 0.0) for _ in range(tensors))
    return Flow(tuple(float(n + 1) for n in range(tensors)), each, Times(0.0, start, 0.0))


@pytest.mark.parametrize("start", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("tensors", [2, 3, 4, 9, 40])
def test_mergecomp_finds_the_best_single_cut_where_steps_have_one_valley(
    tensors: int, start: float
) -> None:
    flow = even(tensors, start)
    assert len(merged_in_two(flow)) == 2
    if tensors > 3:  # it looks at inner cuts alone
        best = min(flow.done((cut, tensors)) for cut in range(1, tensors))
        assert flow.done(merged_in_two(flow)) == pytest.approx(best, abs=1.0)


def test_a_single_tensor_is_one_message() -> None:
    assert all(search(even(1, 1.0)) == (1,) for search in SEARCHES.values())


def test_auto_is_never_later_than_mergecomp() -> None:
    flow = even(30, 0.5)
    assert flow.done(SEARCHES["auto"](flow)) <= flow.done(SEARCHES["mergecomp"](flow))


def test_a_group_beyond_what_a_message_takes_is_cut_again() -> None:
    assert within((2, 5), (3, 3, 4, 4, 9), 8) == (2, 4, 5)
    assert within((5,), (3, 3, 4, 4, 9), 6) == (2, 3, 4, 5)
