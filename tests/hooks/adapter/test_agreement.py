"""Ranks that are to average alike, and do not."""

from typing import Any

import pytest
import torch
from support.harness import PATIENCE_S, together

from atomo.errors import ConfigError
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.adapter.agreement import check_alike
from atomo.transports import network

SETTINGS = {"code": "topk(ratio=0.01)", "seed": "0"}
PARAMETERS = {"0.weight": (64, 32), "0.bias": (64,)}


def errors_of(each: list[tuple[dict[str, str], dict[str, Any]]]) -> list[str]:
    """Returns the error of each rank, for the settings and parameters of each."""
    transports, errors = network(len(each)), [""] * len(each)

    def run(rank: int) -> None:
        settings, shapes = each[rank]
        parameters = {name: torch.zeros(shape) for name, shape in shapes.items()}
        try:
            check_alike(settings, parameters, Direct(transports[rank], PATIENCE_S))
        except ConfigError as error:
            errors[rank] = str(error)

    together(
        [lambda rank=rank: run(rank) for rank in range(len(each))],
        lambda: [transport.abort(1) for transport in transports],
    )
    return errors


def test_ranks_that_are_alike_hear_nothing():
    assert errors_of([(SETTINGS, PARAMETERS)] * 3) == [""] * 3


@pytest.mark.parametrize(
    ("settings", "shapes", "words"),
    [
        ({"code": "topk(ratio=0.1)"}, {}, "code topk(ratio=0.1), rank 0 topk(ratio=0.01)"),
        ({}, {"0.weight": (64, 30)}, "0.weight of shape (64, 30), rank 0 (64, 32)"),
        ({}, {"1.weight": (2, 2)}, "a parameter 1.weight, rank 0 has none"),
        ({"warmup": "5"}, {}, "warmup 5, rank 0 none"),
    ],
)
def test_all_ranks_are_told_the_difference_alone(settings, shapes, words):
    other = SETTINGS | settings, PARAMETERS | shapes
    errors = errors_of([(SETTINGS, PARAMETERS), (SETTINGS, PARAMETERS), other])
    text = f"rank 2 has {words}: model and settings must be the same on all ranks"
    assert errors == [text] * 3


def test_another_order_of_parameters_is_a_difference():
    turned = dict(reversed(PARAMETERS.items()))
    [text, _] = errors_of([(SETTINGS, PARAMETERS), (SETTINGS, turned)])
    assert text.startswith("rank 1 has parameter 0.bias where rank 0 has 0.weight, in another")


def test_of_many_differences_the_first_are_shown():
    many = {f"{number}.weight": (3, 3) for number in range(100)}
    [text, _] = errors_of([(SETTINGS, many), (SETTINGS, {})])
    assert text.startswith("rank 0 has a parameter 0.weight, rank 1 has none; ")
    assert "; and 97 more: " in text
    assert len(text) < 300
