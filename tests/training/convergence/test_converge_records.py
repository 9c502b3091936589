"""Warnings before the first step about combinations that train badly by the records of
`benchmarks/converge.py`.
"""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.errors import ConfigError
from atomo.training.records.causes import at_start

RECORDS = Path(__file__).parents[3] / "benchmarks" / "records" / "converge.jsonl"
LEAST = 0.93  # of the test images; dense gradients reach 0.98


def failing() -> Iterator[str]:
    """Yields the commands whose runs failed, or ended far below dense gradients."""
    for line in RECORDS.read_text().splitlines():
        record = json.loads(line)
        if record["error"] or record["accuracy"] < LEAST:
            yield record["command"]


@pytest.mark.parametrize("command", [*failing()])
def test_what_does_not_train_is_refused_or_told_before_the_first_step(command):
    words = shlex.split(command)
    try:
        settings = parse_arguments(Settings, words, "train", "", Settings.from_recipe).resolved()
    except ConfigError:
        return
    assert next(at_start(settings), "")


def test_there_are_records_of_runs_that_fail():
    assert len([*failing()]) > 10
