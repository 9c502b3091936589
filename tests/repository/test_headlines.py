"""Figures of benchmarks/headlines.py, and its runs in pieces."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.training.checkpoints.checkpoint import load

ROOT = Path(__file__).parents[2]


@pytest.fixture
def headlines(benchmarks_on_path: None) -> Any:
    import headlines

    return headlines


IMAGES = {"task": "images", "seed": 1, "epochs": 2, "sent_bytes": 1000, "damping": 1.0}


def image_run(method: str, *tops: float) -> list[dict[str, Any]]:
    run = {**IMAGES, "method": method, "train_loss": 0.5}
    return [{**run, "epoch": number, "top1": top} for number, top in enumerate(tops, 1)]


def characters(method: str, sent: int, *losses: float) -> list[dict[str, Any]]:
    points = [[100 * place, loss] for place, loss in enumerate(losses, 1)]
    record = {"method": method, "seed": 1, "points": points, "sent_bytes": sent}
    time = {"task": "times", "method": method, "step_s": 0.01}
    return [{"task": "characters", **record}, time]


def test_table_compares_finished_runs_with_dense_and_names_cut_ones(headlines: Any) -> None:
    from parts.headlines.figures import Study, images_table

    records = [*image_run("dense", 0.5, 0.8), *image_run("topk", 0.4, 0.79)]
    table = images_table(Study([*records, *image_run("dgc", 0.3)]), 2)
    _, _, dense, cut, topk = (line.split(" | ") for line in table.splitlines())
    assert dense[1:4] == ["80.00%", "", "0.500"]
    assert topk[1:3] == ["79.00%", "-1.00"]
    assert cut[1] == "cut after 1: 30.00%"


def test_transformers_are_compared_at_equal_steps_and_at_equal_seconds(headlines: Any) -> None:
    from parts.headlines.figures import Study, characters_table

    dense = characters("dense", 500_000, 3.0, 2.0, 1.5)  # 50 ms a step, with the link
    topk = characters("topk", 0, 3.1, 2.1, 1.6)  # 10 ms, so 20 s for all steps
    other_seed = {**topk[0], "seed": 2, "points": [[300, 9.0]]}  # dense has no such seed
    untrained = characters("qsgd", 0)[1]  # its steps were timed
    table = characters_table(Study([*dense, *topk, other_seed, untrained]))
    _, _, dense_row, topk_row = (line.strip("| ").split(" | ") for line in table.splitlines())
    assert dense_row[-2:] == ["100", "1.500"]  # at step 400, after the last evaluation
    assert topk_row[2:-1] == ["1.600, 9.000", "+0.100", "0", "20"]


def test_trials_compare_two_memories_under_the_same_change(headlines: Any) -> None:
    from parts.headlines.figures import Study, trials_table

    losses = {"adam: published": 2.6, "residual: published": 2.5, "adam: 32 windows": 2.0}
    trials = [
        {"task": "trials", "method": name, "seed": 1, "points": [[50, 9.0], [600, loss]]}
        for name, loss in losses.items()
    ]
    _, _, *rows = trials_table(Study(trials)).splitlines()
    assert rows == ["| published | 2.600 | 2.500 | +0.100 |"]  # the other change has one memory


@pytest.mark.slow
def test_pictures_leave_out_what_has_no_curve(headlines: Any, tmp_path: Path) -> None:
    from parts.headlines.figures import Study, draw

    records = [*image_run("dense", 0.5), *characters("dense", 100, 3.0)]
    draw(Study([*records, characters("qsgd", 0)[1]]), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_missing_epochs_are_those_without_a_record(
    headlines: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import json

    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps(line) + "\n" for line in image_run("dense", 0.5)))
    trained = []
    monkeypatch.setattr(headlines, "train", lambda run, epoch, options: trained.append(run) or {})
    options = Namespace(records=records, epochs=2, only="dense,topk")
    list(headlines.epochs(options))
    names = [(run.method, run.seed) for run in trained]
    first = [("dense", 1), ("topk", 1), ("topk", 1)]
    assert names == [*first, *[("dense", 2)] * 2, *[("topk", 2)] * 2, *[("dense", 3)] * 2]


def test_plan_has_only_options_that_a_run_accepts(headlines: Any, tmp_path: Path) -> None:
    from parts.headlines.plan import METHODS, ORDER, plan
    from parts.headlines.train import settings_of

    assert {name for _, names in ORDER for name in names} == {*METHODS}
    for run in plan(15):
        chosen = settings_of(run.words, tmp_path, tmp_path)
        peak = 0.1 if run.method.endswith("-slow") else 0.2
        assert (chosen.n, chosen.peak_lr, chosen.epochs) == (2, peak, 15)


@pytest.mark.long
def test_run_in_pieces_has_the_weights_of_a_run_without_a_cut(
    headlines: Any, tmp_path: Path
) -> None:
    from parts.headlines.train import epoch_record, train_epoch
    from parts.thread_jobs import train

    words = "--n 2 --comm-type Allgather --code topk(ratio=0.01) --network LeNet --epochs 2"
    words += " --batch-size 128 --threads 1"
    settings = parse_arguments(Settings, words.split(), "train", "", Settings.from_recipe)
    whole, cut = (
        replace(settings.resolved(), train_dir=str(tmp_path / name), eval_freq=10**9)
        for name in ("whole", "cut")
    )
    train(whole)
    records = []
    for epoch in (1, 1, 2):  # without a record, an epoch that has a checkpoint is not trained again
        train_epoch(cut, epoch)
        records.append(epoch_record(cut, epoch))
    assert records[0] == records[1]
    assert [record["epoch"] for record in records] == [1, 1, 2]
    step = records[-1]["step"]
    models = [load(tmp_path / name, step).model for name in ("whole", "cut")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
