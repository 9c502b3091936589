"""The errors and the bytes of layers in the folder of a run: true figures, and an unchanged run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import run_threads, settings

from atomo.report.run_page import run_html
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.job import make_job
from atomo.training.step.layer_errors import LAYER_ERRORS_FILE, LayerErrors

SHORT = {"network": "FC", "batch_size": 4, "max_steps": 4, "threads": 1}


def rows_in(folder: Path) -> list[dict[str, Any]]:
    record = json.loads((folder / LAYER_ERRORS_FILE).read_text())
    assert record["step"] == 4
    rows: list[dict[str, Any]] = record["rows"]
    return rows


@pytest.mark.slow
def test_a_run_has_errors_and_bytes_of_its_layers_and_the_same_bits(tmp_path):
    common = SHORT | {"code": "qsgd"}
    run_threads(settings(tmp_path / "with", **common))
    run_threads(settings(tmp_path / "without", report=False, **common))
    rows = rows_in(tmp_path / "with")
    assert not (tmp_path / "without" / LAYER_ERRORS_FILE).exists()
    layers = json.loads((tmp_path / "with" / "layers.json").read_text())["rows"]
    names = {(layer["name"], layer["codec"]) for layer in layers}
    assert {(row["name"], row["codec"]) for row in rows} == names
    coded = [row for row in rows if row["codec"].startswith("qsgd")]
    assert coded
    assert all(0 < row["error"] < 10 for row in coded)
    assert all(row["bytes"] > 0 for row in rows)
    models = [load(tmp_path / name, 4).model for name in ("with", "without")]
    assert all(models[0][name].equal(models[1][name]) for name in models[0])
    text = run_html(tmp_path / "with")
    assert "Bytes and errors of layers are those of worker 1 at step 4." in text
    assert f"<td>{coded[0]['error']:.2g}</td></tr>" in text


@pytest.mark.slow
def test_differences_of_local_steps_are_not_measured(tmp_path):
    run_threads(settings(tmp_path, **SHORT, local_steps="2"))
    assert not (tmp_path / LAYER_ERRORS_FILE).exists()
    assert "Layers were not measured in this run" in run_html(tmp_path)


def measured(folder: Path, code: str, value: float = 1.0) -> list[dict[str, Any]]:
    """Measures gradients whose entries are alternately 0 and `value`."""
    job = make_job(settings(folder, network="FC", code=code), 3)
    errors = LayerErrors(job)
    for bucket in job.buckets:
        flat = (torch.arange(bucket.size) % 2).float() * value
        before = flat.clone()
        errors.add(bucket, flat, 4)
        assert flat.equal(before)
    errors.finish(4)
    return rows_in(folder) if (folder / LAYER_ERRORS_FILE).exists() else []


def test_an_error_is_the_norm_of_the_lost_part_over_that_of_the_gradient(tmp_path):
    (tmp_path / "settings.toml").touch()
    rows = measured(tmp_path, "topk(ratio=0.25)")
    coded = [row["error"] for row in rows if row["codec"].startswith("topk")]
    # Half of the entries are 1, and half of those are sent: the squared error is a half.
    assert coded == pytest.approx([0.5**0.5] * len(coded), rel=0.02)
    assert coded
    assert {row["error"] for row in rows if row["codec"] == "sgd"} <= {0.0}


def test_a_vote_and_a_gradient_of_zeros_have_no_error(tmp_path):
    (tmp_path / "settings.toml").touch()
    assert {row["error"] for row in measured(tmp_path, "sgd", 0.0)} == {None}
    votes = [row for row in measured(tmp_path, "signsgd") if row["codec"].startswith("signsgd")]
    assert {row["error"] for row in votes} == {None}


def test_a_worker_on_a_host_without_the_folder_makes_none(tmp_path):
    assert not measured(tmp_path / "elsewhere", "topk(ratio=0.25)")
    assert not (tmp_path / "elsewhere").exists()
