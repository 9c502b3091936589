"""The values of `--fusion`, and the buckets that each makes of a list of tensors."""

import pytest

from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.options.grouping import Grouping, grouping

SIZES = [4_000_000, 4, 1_000_000, 2_000_000, 4, 500_000]


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("layer", (1, 2, 3, 4, 5, 6)),
        ("one", (6,)),
        ("count:2", (3, 6)),
        ("count:4", (1, 3, 4, 6)),
        ("count:100", (1, 2, 3, 4, 5, 6)),
        ("cuts:1,4,6", (1, 4, 6)),
        ("bytes:3", (1, 3, 6)),
        ("bytes:4.1", (2, 6)),
        ("bytes:0.000001", (1, 2, 3, 4, 5, 6)),
    ],
)
def test_tensors_are_cut_as_it_says(text: str, cuts: tuple[int, ...]) -> None:
    assert grouping(text).cuts(SIZES) == cuts


def test_no_tensors_are_no_groups() -> None:
    assert grouping("one").cuts([]) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("laier", "did you mean"),
        ("count", "count needs its number of messages, e.g. count:4"),
        ("count:few", "count needs its number of messages"),
        ("count:0", "the number of messages is a whole number from 1"),
        ("count:2.5", "a whole number from 1"),
        ("bytes:nan", "a number above 0"),
        ("bytes:-1", "a number above 0"),
        ("layer:3", "layer takes no number"),
        ("auto:3", "auto takes no number"),
        ("cuts", "cuts needs how many parameters are sent"),
        ("cuts:3,x", "cuts needs how many parameters"),
        ("cuts:99999999999", "cuts needs how many parameters"),
        ("cuts:3,3", "numbers increase from 1"),
        ("cuts:0,3", "numbers increase from 1"),
    ],
)
def test_what_it_cannot_be_is_refused_by_the_settings(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings(fusion=text)


def test_megabytes_are_those_of_fusion_mb_where_it_says_nothing() -> None:
    assert Settings(fusion_mb=2.5).grouping == Grouping("bytes", 2.5)
    assert Settings(fusion_mb=2.5, fusion="Layer").resolved().fusion == "layer"
    assert Settings(fusion_mb=2.5).resolved().grouping == Grouping("bytes", 2.5)


def test_cuts_of_another_number_of_tensors_are_refused() -> None:
    with pytest.raises(ConfigError, match="the last cut is the number of parameters, 6 of them"):
        grouping("cuts:1,5").cuts(SIZES)


def test_what_is_found_from_costs_is_known_where_a_job_starts() -> None:
    assert Settings(fusion="Auto").resolved().grouping.searched
    with pytest.raises(ConfigError, match="found where a job starts"):
        grouping("mergecomp").cuts(SIZES)
