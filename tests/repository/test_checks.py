"""The checks of annotated functions that run during tests, beside those in `test_selection`."""

from array import array
from collections.abc import Callable, Iterator

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from support.checks import checked
from support.draws import unchecked
from torch import Tensor, ones

check = checked(typechecker=beartype)


@check
def added(a: Float[Tensor, "m n"], b: Float[Tensor, " n"]) -> Float[Tensor, "m n"]:
    return a + b


@check
def given(a: Float[Tensor, " n"], make: Callable[[Tensor], object]) -> Float[Tensor, " n"]:
    return make(a)  # type: ignore[return-value]


@check
def several(*parts: Float[Tensor, " n"], first: Float[Tensor, " n"] | None = None) -> int:
    return len(parts)


@check
def rows(count: int, a: Float[Tensor, "{count} n"]) -> Iterator[Float[Tensor, " n"]]:
    yield from a


@check
def unread(a: Float[Tensor, " n"], b: "array[int]") -> Float[Tensor, " n"]:
    return a


def test_a_letter_is_one_size_in_all_arguments_and_the_result():
    assert added(ones(2, 3), ones(3)).shape == (2, 3)
    with pytest.raises(TypeCheckError, match="n=3"):
        added(ones(2, 3), ones(2))
    assert given(ones(4), lambda a: a + 1).shape == (4,)
    with pytest.raises(TypeCheckError, match="n=4"):
        given(ones(4), lambda a: a[1:])
    assert several(ones(2), ones(2), first=ones(2)) == 2
    for wrong in ((ones(2), ones(3)), (ones(2, 1),), (ones(2).int(),), (2.0,)):
        with pytest.raises(TypeCheckError):
            several(*wrong)
    with pytest.raises(TypeCheckError):
        several(ones(2), first=ones(1))


def test_each_call_has_letters_of_its_own():
    assert given(ones(4), lambda a: given(ones(2), lambda b: b).repeat(2)).shape == (4,)
    with pytest.raises(TypeCheckError, match="n=2"):  # the inner one's, told as it is
        given(ones(4), lambda a: given(ones(2), lambda b: b.repeat(2)))
    assert given(ones(5), lambda a: a).shape == (5,)  # what failed left nothing behind


def test_sizes_that_are_computed_and_what_yields_are_checked_too():
    assert len([*rows(2, ones(2, 3))]) == 2
    with pytest.raises(TypeCheckError):
        rows(3, ones(2, 3))


def test_what_can_be_read_is_checked_beside_what_cannot():
    assert unread(ones(2), array("i")).shape == (2,)
    with pytest.raises(TypeCheckError):
        unread(ones(2, 2), array("i"))


def test_checks_can_be_left_out():
    with unchecked():
        assert given(ones(4), lambda a: a[1:]).shape == (3,)
    with pytest.raises(TypeCheckError):
        given(torch.ones(4), lambda a: a[1:])
