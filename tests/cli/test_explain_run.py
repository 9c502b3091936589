"""`atomo explain FOLDER` says what a run's steps took, beside what is predicted for them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomo.cli import main
from atomo.cli.explanation.options import ExplainOptions
from atomo.cli.explanation.run import by_last_plan, with_run_options
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.training.folder.kept_settings import keep_settings

PARTS = {"compute_s": 0.25, "encode_s": 0.125, "send_s": 0.0, "wait_s": 0.5, "decode_s": 0.0625}


def run_in(folder: Path, steps: int, **given: Any) -> Path:
    """Returns a folder as a run leaves it; its first steps took ten times as long."""
    settings = Settings(
        network="FC", dataset="Digits", batch_size=4, code="topk(ratio=0.01)",
        train_dir=str(folder), **given,
    )  # fmt: skip
    keep_settings(folder, settings.resolved())
    lines = [
        {"event": "StepDone", "step": step, "step_s": 10.0 if step < 3 else 1.0, "update_s": 0.1}
        | PARTS
        for step in range(1, steps + 1)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


@pytest.mark.parametrize("comm_type", ["ParameterServer", "Allgather"])
def test_a_run_is_beside_its_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], comm_type: str
) -> None:
    folder = run_in(tmp_path, 5, comm_type=comm_type)
    words = [str(folder), "--bandwidth", "100mbit", "--repetitions", "1", "--json", "yes"]
    assert main(["explain", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = {part["name"]: part for part in found["parts"]}
    assert (found["steps"], parts["step"]["measured_s"]) == (3, 1.0)
    assert parts["send and wait"]["measured_s"] == 0.5
    assert parts["step"]["predicted_s"] > parts["passes"]["predicted_s"] > 0


@pytest.mark.slow
def test_it_says_where_most_of_the_time_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(run_in(tmp_path, 4)), "--repetitions", "1"]) == 0
    assert "Most of a step is send and wait: 50%" in capsys.readouterr().out


def test_steps_by_an_earlier_plan_are_not_those_of_the_settings() -> None:
    steps = [{"step": 3}, *({"step": step, "plan_since": 5} for step in (5, 6))]
    assert by_last_plan(steps) == steps[1:]
    assert by_last_plan(steps[:1]) == steps[:1]
    assert not by_last_plan([])


def test_a_run_says_how_many_workers_a_host_had_or_we_do() -> None:
    options, run = ExplainOptions(), Settings(comm_type="Allgather", n=4, hierarchical="2")
    assert with_run_options(run, options).per_host == 2
    assert with_run_options(replace(run, hierarchical="no").resolved(), options).per_host == 1
    named = replace(run, hierarchical="yes")
    assert with_run_options(named, replace(options, hierarchical="3")).per_host == 3
    with pytest.raises(ConfigError, match="how many of its 4 workers shared one"):
        with_run_options(named, options)


@pytest.mark.slow
def test_hosts_of_a_run_are_those_that_it_was_told_or_that_we_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_in(tmp_path, 4, comm_type="Allgather", n=4, hierarchical="yes")
    assert main(["explain", str(folder), "--repetitions", "1"]) != 0
    assert "how many of its 4 workers shared one, e.g. --hierarchical 2" in capsys.readouterr().err
    words = ["--repetitions", "1", "--bandwidth", "1mbit", "--json", "yes"]
    steps = []
    for said, more in (("yes", ["--hierarchical", "2"]), ("2", []), ("no", [])):
        run_in(tmp_path, 4, comm_type="Allgather", n=4, hierarchical=said)
        assert main(["explain", str(folder), *words, *more]) == 0
        steps.append(json.loads(capsys.readouterr().out)["parts"][0]["predicted_s"])
    assert max(steps[:2]) < steps[2]  # one message crosses the link, not three


def test_a_run_without_steps_cannot_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(run_in(tmp_path, 2))]) == 4
    assert "has no step from 3 on" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "none")]) != 0
    assert str(tmp_path / "none") in capsys.readouterr().err
