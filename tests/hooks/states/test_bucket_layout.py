"""The first steps after a resume, in the buckets of the run that saved."""

from typing import Any

import pytest
import torch
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.states.bucket_layout import BUCKETS, BucketLayout

PARAMETERS = {name: torch.zeros(2) for name in "abcdef"}
FIRST, LATER = ["ab", "cd", "ef"], ["fe", "dcb", "a"]  # DDP's buckets before and after its rebuild


def bucket(names: str, number: int = 0) -> Chunk:
    """Returns a bucket of DDP's."""
    whole = torch.arange(2.0 * len(names))
    return Chunk(number, dict(zip(names, whole.split(2), strict=True)), whole)


def step(layout: BucketLayout, buckets: list[str]) -> tuple[list[Any], list[str]]:
    """Returns the submissions of a step, and the buckets in the order of completion."""
    submitted, over = [], []
    for number, names in enumerate(buckets):
        last = number + 1 == len(buckets)
        done = lambda names=names: over.append(names)  # noqa: E731
        submitted += layout.submissions(bucket(names, number), last, done)
    for one in submitted:
        one.done()
    return submitted, over


def groups(submitted: list[Any]) -> list[str]:
    return ["".join(one.chunk.gradients) for one in submitted]


def loaded(state: dict[str, Any]) -> BucketLayout:
    layout = BucketLayout(PARAMETERS)
    layout.load_state_dict(state)
    return layout


def test_without_a_state_buckets_are_what_ddp_makes_them():
    layout = BucketLayout(PARAMETERS)
    assert layout.state_dict() == {BUCKETS: []}
    for buckets in (FIRST, LATER):
        submitted, over = step(layout, buckets)
        assert groups(submitted) == over == buckets
        assert all(isinstance(one.chunk.whole, Tensor) for one in submitted)
        assert [one.last for one in submitted] == [False, False, True]
        assert layout.state_dict() == {BUCKETS: [[*names] for names in buckets]}


def test_the_first_steps_have_the_buckets_of_the_state():
    layout = loaded({BUCKETS: [[*names] for names in LATER]})
    submitted, over = step(layout, FIRST)
    assert groups(submitted) == LATER
    assert over == ["ef", "cd", "ab"]  # each once all of its gradients are averaged
    assert [one.last for one in submitted] == [False, False, True]
    assert [one.chunk.number for one in submitted] == [0, 1, 2]
    assert layout.state_dict() == {BUCKETS: [[*names] for names in LATER]}
    submitted, over = step(layout, LATER)
    assert groups(submitted) == over == LATER
    assert all(isinstance(one.chunk.whole, Tensor) for one in submitted)  # none is copied
    assert groups(step(layout, FIRST)[0]) == FIRST  # they are divided otherwise, and stay so


def test_a_bucket_leaves_as_soon_as_it_is_complete():
    layout = loaded({BUCKETS: [["b", "a"], ["f"], ["e", "d", "c"]]})
    assert groups([*layout.submissions(bucket("ab"), False, print)]) == ["ba"]
    assert groups([*layout.submissions(bucket("cd"), False, print)]) == []
    assert groups([*layout.submissions(bucket("ef"), True, print)]) == ["f", "edc"]


def test_gradients_are_averaged_where_they_lie():
    layout, buckets = loaded({BUCKETS: [[*"fedcba"]]}), [bucket(names) for names in FIRST]
    submitted = [one for n, chunk in enumerate(buckets)
                 for one in layout.submissions(chunk, n == 2, list)]  # fmt: skip
    [one] = submitted
    for gradient in one.chunk.gradients.values():
        gradient.fill_(7.0)
    assert all(bool((chunk.whole == 7.0).all()) for chunk in buckets if chunk.whole is not None)


@pytest.mark.parametrize("names", [[], [["a", "b"]], [["a", "b", "c"], ["d", "e", "f", "g"]]])
def test_buckets_of_another_model_count_for_nothing(names):
    layout = loaded({BUCKETS: names})
    assert groups(step(layout, FIRST)[0]) == FIRST
    assert groups(step(loaded({}), FIRST)[0]) == FIRST  # as states had none


def test_a_bucket_is_on_one_device():
    layout = BucketLayout(PARAMETERS | {"a": torch.zeros(2, device="meta")})
    layout.load_state_dict({BUCKETS: [[*"fedcba"]]})
    assert groups(step(layout, FIRST)[0]) == FIRST


@pytest.mark.parametrize("found", ["ab", [3], {"a": 1}, None])
def test_what_is_no_list_of_names_is_refused(found):
    with pytest.raises(CheckpointError, match="buckets must be lists of parameters' names"):
        loaded({BUCKETS: found})
