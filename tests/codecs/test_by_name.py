"""Codecs of single parameters: their specification is parsed and printed, and parameters keep their
places.
"""

import pytest
import torch

from atomo.codecs import make_codec
from atomo.codecs.by_name import parse_by_name
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.fusion import plan
from atomo.options.grouping import ONE

SHAPES = [(name, torch.Size([8, 8])) for name in ("a.weight", "b.weight", "c.weight", "d.weight")]
SHAPES.insert(1, ("a.bias", torch.Size([8])))


def test_what_is_written_is_read_back() -> None:
    text = "topk(ratio=0.1): a.* b.weight; sgd: *"
    assert str(parse_by_name(text)) == text
    assert str(parse_by_name(" ; ")) == ""


@pytest.mark.parametrize("text", ["sgd", "sgd:", "sgd: ; bf16: a", ": a", "a: sgd"])
def test_what_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_by_name(text)


def test_the_first_that_names_a_parameter_counts() -> None:
    rules = parse_by_name("bf16: b.weight; sgd: *.weight")
    codecs = [str(rules.codec(name, make_codec("topk"))) for name, _ in SHAPES]
    assert codecs == ["sgd", "topk", "bf16", "sgd", "sgd"]


def test_a_name_of_no_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no parameter is called 'e\*'; they are a.weight"):
        parse_by_name("sgd: a.weight e*").check_names(name for name, _ in SHAPES)


def test_neighbours_with_the_same_codec_share_a_part_and_small_vectors_stay_dense() -> None:
    rules = parse_by_name("topk: c.weight b.weight a.bias; svd: a.weight")
    (bucket,) = plan(SHAPES, make_codec("bf16"), ONE, rules)
    codecs = [(str(part.codec), [slot.name for slot in part.slots]) for part in bucket.parts]
    assert codecs == [
        ("bf16", ["d.weight"]),
        ("topk", ["c.weight", "b.weight"]),
        ("svd", ["a.weight"]),
        ("sgd", ["a.bias"]),
    ]


def test_parameters_lie_where_they_do_with_one_codec() -> None:
    """Checks that memories, optimizers and weights stay in place when codecs change."""
    rules = parse_by_name("topk: a.weight c.weight; svd: b.weight")
    (mixed,), (plain,) = (
        plan(SHAPES, make_codec("bf16"), ONE, *options) for options in ([rules], [])
    )
    assert mixed.slots == plain.slots
    assert mixed.layout_hash != plain.layout_hash


def test_the_memory_is_one_that_suits_all_codecs() -> None:
    assert Settings(code="sgd", code_for="topk: fc1.weight").resolved().memory == "dgc"
    with pytest.raises(ConfigError, match="diverges"):
        Settings(code="topk", code_for="svd: fc1.weight").resolved()
    with pytest.raises(ConfigError, match="Allreduce"):
        Settings(code="sgd", code_for="topk: fc1.weight", comm_type="Allreduce", n=2).resolved()
