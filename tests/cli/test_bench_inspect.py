"""The tools for looking at gradients."""

import json
import re
import sys
from dataclasses import fields

import pytest
import torch
from safetensors.torch import save_file
from support.harness import run_threads, settings
from torch import Generator

from atomo.analysis.gradient_report import Cluster, EncodingErrors, Layer, clusters, layers, losses
from atomo.cli import main
from atomo.codecs import CODECS, make_codec
from atomo.core.distribution import install_command


@pytest.fixture
def dump(tmp_path):
    generator = Generator().manual_seed(0)
    path = tmp_path / "gradient.safetensors"
    tensors = {"fc": torch.randn(30, 20, generator=generator), "bias": torch.ones(30)}
    save_file(tensors, path)
    return path


@pytest.mark.long  # it compiles every kernel
def test_bench_measures_every_codec(dump, capsys):
    assert main(["bench", f"--tensor={dump}", "--json=yes", "--repetitions=1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [make_codec(row["spec"]).id for row in rows] == [*CODECS]
    assert all(row["entries"] == 630 and row["frame_bytes"] > 0 for row in rows)
    assert rows[0]["relative_error"] == 0
    assert {row["dense_entries"] for row in rows} == {30}


@pytest.mark.slow
def test_bench_measures_codecs_that_are_named(dump, capsys):
    words = ["bench", f"--tensor={dump}", "--json=yes", "--repetitions=1", "--code=sgd; topk"]
    assert main(words) == 0
    dense, sparse = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert dense["relative_error"] == 0 < sparse["relative_error"] < 1
    assert sparse["frame_bytes"] < dense["frame_bytes"]


@pytest.mark.slow
def test_inspect_shows_layers_and_losses_and_draws(dump, tmp_path, capsys):
    png = tmp_path / "g.png"
    assert main(["inspect", f"--tensor={dump}", "--code=sgd; fp16", f"--png={png}"]) == 0
    shown = capsys.readouterr().out
    assert "30x20" in shown
    assert "fp16" in shown
    assert "clusters of lss" in shown
    assert "…" not in shown
    assert png.read_bytes().startswith(b"\x89PNG")


def test_inspect_explains_its_columns(dump, capsys):
    assert main(["inspect", f"--tensor={dump}"]) == 0
    shown = capsys.readouterr().out
    for kind in (Layer, Cluster, EncodingErrors):
        for column in fields(kind):
            told = column.metadata.get("help", "")
            assert told or column.name in ("name", "shape")  # their names explain themselves
            assert not told or re.search(
                rf"^  {column.name} +{re.escape(told)}", shown, re.MULTILINE
            )


def test_a_picture_asks_for_matplotlib_before_any_work(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["inspect", "--tensor=/nowhere.safetensors", "--png=g.png"]) == 2
    assert f"`{install_command('plot')}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("png", "message"), [("/nowhere/g.png", "no folder /nowhere"), ("g.doc", r"ends in none of")]
)
def test_a_picture_that_cannot_be_written_is_named_before_any_work(png, message, capsys):
    assert main(["inspect", "--tensor=/nowhere.safetensors", f"--png={png}"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--steps=-1", "--repetitions=0", "--threads=0"])
def test_what_cannot_be_measured_is_named(option, dump, capsys):
    assert main(["bench", f"--tensor={dump}", option]) == 2
    name, _, value = option.partition("=")
    assert f"{name} must be at least {int(value) + 1}, got {value}" in capsys.readouterr().err


def test_an_empty_gradient_is_named(tmp_path, capsys):
    save_file({}, tmp_path / "none.safetensors")
    assert main(["bench", f"--tensor={tmp_path / 'none.safetensors'}"]) == 2
    assert "there is no tensor in it" in capsys.readouterr().err


def test_a_rank_one_matrix_is_seen_as_one():
    (layer,) = layers({"w": torch.outer(torch.arange(1.0, 5.0), torch.ones(6))})
    assert layer.rank == pytest.approx(1)
    assert layer.top3 == pytest.approx(1)


def test_clusters_are_those_of_the_entries():
    gradient = {"w": torch.tensor([-5.0] * 30 + [1.0] * 60 + [2.0] * 10)}
    found = {round(one.centre, 3): one for one in clusters(gradient)}
    assert sum(one.share for one in found.values()) == pytest.approx(1)
    assert found[-5.0].share == pytest.approx(0.3)
    assert found[1.0].share == pytest.approx(0.6)
    assert all(one.entropy == 0 for one in found.values())


@pytest.mark.slow
def test_errors_are_split_by_sign_and_size():
    gradient = {"w": torch.linspace(-1, 1, 1000).view(50, 20)}
    found = losses(make_codec("topk(ratio=0.05)"), gradient)
    assert found.big < 0.2
    assert found.small == pytest.approx(1.0, abs=0.01)
    assert found.positive == pytest.approx(found.negative, rel=0.05)


@pytest.mark.slow
def test_a_run_dumps_its_gradients(tmp_path):
    run_threads(settings(tmp_path, network="FC", batch_size=4, max_steps=4, dump_every=2))
    names = [path.name for path in sorted((tmp_path / "gradients").iterdir())]
    assert names == ["step-00000002.safetensors", "step-00000004.safetensors"]


def test_a_missing_dump_is_named(capsys):
    assert main(["bench", "--tensor=/nowhere.safetensors"]) == 3
    assert "/nowhere.safetensors" in capsys.readouterr().err
