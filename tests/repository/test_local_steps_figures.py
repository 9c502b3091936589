"""Figures of benchmarks/local_steps.py: products of recorded steps and seconds, and the page."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from atomo.planning.local_price import MEASURED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def figures(benchmarks_on_path: None) -> Any:
    from parts.local_steps import figures as local_steps_figures

    return local_steps_figures


def write(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


CURVE = {"workload": "LeNet", "seed": 1, "rate": 0.02, "sent_bytes": 0}
TIME = {"workload": "LeNet", "link": "10mbit", "local_s": [], "sent_bytes": [1000, 3000, 2000]}


@pytest.fixture
def study(figures: Any, tmp_path: Path) -> Any:
    reached = [[192, 0.98, 0.06], [224, 0.985, 0.05]]
    write(
        tmp_path / "local_steps_curves.jsonl",
        {**CURVE, "method": "DDP", "points": reached},
        {**CURVE, "method": "DDP", "seed": 0, "points": [[32, 0.99, 0.01]]},  # of the sweep
        {**CURVE, "method": "ours 32 sgd", "points": reached},
        {**CURVE, "method": "ours 8 sgd", "points": [[512, 0.98, 0.06]]},
    )
    write(
        tmp_path / "local_steps_times.jsonl",
        {**TIME, "method": "DDP", "exchange_s": [2.5, 2.0, 3.0]},
        {**TIME, "method": "ours 8 sgd", "exchange_s": [4.0], "local_s": [0.06, 0.05]},
        {**TIME, "method": "DDP", "link": "50mbit", "exchange_s": [0.46]},
        {**TIME, "method": "PostLocalSGD 8", "link": "50mbit", "exchange_s": [1], "local_s": [0.1]},
    )
    return figures.Study(tmp_path)


def test_seconds_are_steps_times_local_steps_and_a_share_of_an_exchange(study: Any) -> None:
    assert study.seconds("LeNet", "10mbit", "DDP") == 224 * 2.0
    round_s = 4.0 + 31 * 0.05
    assert study.seconds("LeNet", "10mbit", "ours 32 sgd") == pytest.approx(224 / 32 * round_s)
    assert study.sent_bytes("LeNet", "ours 32 sgd") == 224 / 32 * 2000


def test_other_load_during_the_timings_of_a_link_is_left_out(study: Any) -> None:
    assert study.step_s("LeNet", "50mbit", "DDP") == pytest.approx(0.05 + 0.46 - 0.1)


def test_a_target_that_a_seed_does_not_reach_has_no_seconds(study: Any) -> None:
    assert study.steps_to_target("LeNet", "ours 8 sgd") == [None]
    assert study.seconds("LeNet", "10mbit", "ours 8 sgd") is None


def test_the_page_has_the_tables_of_the_records(figures: Any) -> None:
    study = figures.Study(ROOT / "benchmarks" / "records")
    page = (ROOT / "docs" / "local-steps.md").read_text()
    for name, table in figures.tables(study):
        assert f"<!-- {name} -->\n{table}<!-- end of {name} -->" in page, name


def test_explain_has_the_price_of_the_records(figures: Any) -> None:
    study = figures.Study(ROOT / "benchmarks" / "records")
    base = study.loss("characters", "DDP", 512)
    for every, percent in MEASURED.items():
        losses = study.loss("characters", f"ours {every} sgd", 512)
        same_seeds = base[: len(losses)]
        assert percent == round(100 * (fmean(losses) / fmean(same_seeds) - 1), 1)
