"""A sweep tries every combination once, goes on where it stopped, and names the best."""

import json
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from atomo.cli import main
from atomo.cli.sweep import (
    advice,
    check_grid,
    place_trial,
    point_name,
    run_trials,
    trial_arguments,
)
from atomo.config.file import settings_text
from atomo.config.settings import Settings
from atomo.errors import CheckpointError, ConfigError, Diverged
from atomo.launch.resolve import resolve_settings
from atomo.launch.studies.grid import Axis, axes_of, grid_points
from atomo.launch.studies.sweep_results import best_trial, results_table
from atomo.workloads import make_task
from atomo.workloads.classes import TOP1


def trial_settings(fixed: list[str], point: Mapping[str, str], folder: Path) -> Settings:
    """Returns the settings of one point of the grid, as `sweep` makes them."""
    return place_trial(trial_arguments(fixed, point), folder, point_name(point))


@pytest.mark.parametrize(
    ("words", "axes", "rest"),
    [
        ("--lr 2^-3..2^-1", {"--lr": "0.125 0.25 0.5"}, ""),
        (  # the seven of the published tune.sh
            "--lr 2^-7..2^-1",
            {"--lr": "0.0078125 0.015625 0.03125 0.0625 0.125 0.25 0.5"},
            "",
        ),
        ("--lr=2^1..2^-1 --n 3", {"--lr": "2 1 0.5"}, "--n=3"),
        ("--base-lr 0.1,0.2", {"--lr": "0.1 0.2"}, ""),
        ("--batch_size 10^0..10^2", {"--batch-size": "1 10 100"}, ""),
        ("--lr 1,2^2..2^3 --momentum 0,0.9", {"--lr": "1 4 8", "--momentum": "0 0.9"}, ""),
        ("--lr 0.1 --nesterov yes --seed=3", {}, "--lr=0.1 --nesterov=yes --seed=3"),
        ("--nesterov --lr 1,2 --slurm", {"--lr": "1 2"}, "--nesterov --slurm"),
        ("--lr-milestones 3,6", {}, "--lr-milestones=3,6"),  # no number, but a list of them
        ("--enable-gpu= --mpi-args=-x", {}, "--enable-gpu= --mpi-args=-x"),
        ("--lr 1,2 --seed", {"--lr": "1 2"}, "--seed"),  # its value is missing, and it says so
        ("--config a.toml b.toml --lr 1,2", {"--lr": "1 2"}, "--config a.toml b.toml"),
    ],
)
def test_options_with_several_values_are_axes(words, axes, rest):
    found, left = axes_of(words.split())
    assert found == [Axis(option, tuple(values.split())) for option, values in axes.items()]
    assert left == rest.split()


def test_codecs_have_commas_of_their_own():
    found, _ = axes_of(["--code", "svd(rank=3, factors=fp16); qsgd"])
    assert found == [Axis("--code", ("svd(rank=3, factors=fp16)", "qsgd"))]
    assert axes_of(["--code", "topk(ratio=0.1, values=fp16)"])[0] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lr 2^-1..3^4", "powers of one number"),
        ("--lr 2^1..2^9999", "1000 at most"),
        ("--lr 0.1..0.5", r"--lr '0.1..0.5': cannot read this range; write 2\^-7\.\.2\^-1"),
        ("--lr 1,2 --lr=3,4", "--lr is given twice"),
    ],
)
def test_a_grid_that_cannot_be_read_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        axes_of(words.split())


def test_a_sweep_of_nothing_is_refused(capsys):
    assert main(["sweep", "--lr", "0.1"]) == 2
    assert (
        "no option has several values; give some, as in --lr 2^-7..2^-1" in capsys.readouterr().err
    )


LOSSES = {0.1: [2.0] * 19 + [1.0, 3.0], 0.2: [9.0] * 19 + [0.5, 0.5], 5.0: [9.0]}


def write_metrics(settings: Settings) -> int:
    """Replaces the training."""
    folder = Path(settings.train_dir)
    folder.mkdir(parents=True)
    for step, loss in enumerate(LOSSES[settings.lr], 1):
        line = {"step": step, "loss": loss, "accuracy": 0.5, "step_s": 0.01, "up_bytes": 10}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    return Diverged.exit_code if settings.lr == 5 else 0


def planned(folder: Path) -> Mapping[str, Settings]:
    axes, rest = axes_of(["--lr=0.1,0.2,5", "--network=FC", "--max-steps=21"])
    return {point_name(one): trial_settings(rest, one, folder) for one in grid_points(axes)}


def test_the_best_has_the_lowest_loss_over_the_last_steps(tmp_path):
    code, trials = run_trials(planned(tmp_path), tmp_path, write_metrics)
    assert code == 0
    assert [(trial.name, trial.loss) for trial in trials] == [
        ("lr=0.1", 2.0), ("lr=0.2", 0.5), ("lr=5", None)
    ]  # fmt: skip
    first = best_trial(trials, TOP1)
    assert first is not None
    assert first.name == "lr=0.2"
    assert results_table(trials, TOP1).row_count == 3
    assert (
        advice({"--lr": "0.2", "--code": "svd(rank=3)"}) == "best: --lr 0.2 --code 'svd(rank=3)'\n"
    )
    assert best_trial(trials[2:], TOP1) is None


@pytest.mark.parametrize(
    ("task", "key", "first"), [("images", "top1", "lr=0.1"), ("transcription", "wer", "lr=0.2")]
)
def test_the_best_of_evaluated_trials_is_the_best_by_the_tasks_metric(task, key, first, tmp_path):
    def run(settings: Settings) -> int:
        code = write_metrics(settings)
        if not code:
            value = {0.1: 0.75, 0.2: 0.25}[settings.lr]  # an error rate, or an accuracy
            line = json.dumps({"step": 21, key: value})
            (Path(settings.train_dir) / "evaluations.jsonl").write_text(line + "\n")
        return code

    words = ["--lr=0.1,0.2,5", f"--task={task}", "--max-steps=21", "--evaluator=local"]
    axes, rest = axes_of(words)
    trials = {point_name(one): trial_settings(rest, one, tmp_path) for one in grid_points(axes)}
    code, found = run_trials(trials, tmp_path, run)
    metric = make_task(task).metrics[0]
    chosen = best_trial(found, metric)
    assert code == 0
    assert chosen is not None
    assert chosen.name == first
    console = Console(width=120, file=StringIO())
    with console.capture() as shown:
        console.print(results_table(found, metric))
    assert f"test {metric.shown}" in shown.get()
    (row,) = (line for line in shown.get().splitlines() if "best" in line)
    assert first in row


def test_the_same_sweep_goes_on_where_it_stopped(tmp_path):
    ran: list[float] = []

    def stops(settings: Settings) -> int:
        ran.append(settings.lr)
        return 130 if settings.lr == 0.2 else write_metrics(settings)

    assert run_trials(planned(tmp_path), tmp_path, stops)[0] == 130
    assert ran == [0.1, 0.2]

    def goes_on(settings: Settings) -> int:
        ran.append(settings.lr)
        return write_metrics(settings)

    code, trials = run_trials(planned(tmp_path), tmp_path, goes_on)
    assert (code, len(trials)) == (0, 3)
    assert ran == [0.1, 0.2, 0.2, 5.0]
    assert run_trials(planned(tmp_path), tmp_path, goes_on)[1] == trials
    assert len(ran) == 4
    other = {"lr=0.1": planned(tmp_path / "other")["lr=0.1"]}
    other["lr=0.1"] = Settings.from_recipe(
        network="FC", lr=0.1, max_steps=99, evaluator="none", train_dir=str(tmp_path / "new")
    )
    run_trials(other, tmp_path, goes_on)
    assert ran[4:] == [0.1]  # of other settings there is no result yet


@pytest.mark.parametrize(("kept", "resume"), [("max_steps = 9\n", "never"), (None, "auto")])
def test_what_other_settings_left_in_a_folder_is_not_continued(kept, resume, tmp_path):
    trials = {"lr=0.1": planned(tmp_path)["lr=0.1"]}
    folder = tmp_path / "lr=0.1"
    folder.mkdir()
    text = settings_text(resolve_settings(trials["lr=0.1"])) if kept is None else kept
    (folder / "settings.toml").write_text(text)
    found: list[str] = []

    def run(settings: Settings) -> int:
        found.append(settings.resume)
        return 130

    run_trials(trials, tmp_path, run)
    assert found == [resume]


def test_trials_are_told_apart_and_have_no_evaluator(tmp_path):
    one, two, _ = planned(tmp_path).values()
    assert (one.lr, two.lr) == (0.1, 0.2)
    assert one.evaluator == "none"
    assert Path(one.train_dir) == tmp_path / "lr=0.1"
    with_one = trial_settings(["--evaluator", "local"], {"--lr": "1"}, tmp_path)
    assert with_one.evaluator == "local"


def test_strange_results_are_named(tmp_path):
    (tmp_path / "sweep.jsonl").write_text('{"name": "x"}\n')
    with pytest.raises(CheckpointError, match=r"sweep\.jsonl is not that of a sweep"):
        run_trials(planned(tmp_path), tmp_path, write_metrics)


def test_all_trials_are_checked_before_the_first_is_run(tmp_path):
    ran: list[Settings] = []
    axes, rest = axes_of(["--code=svd; topk; svd(rang=3)", "--network=FC"])
    cells = {
        point_name(one): trial_settings(rest, one, tmp_path / "x") for one in grid_points(axes)
    }
    with pytest.raises(ConfigError, match=r"^code=svd\(rang=3\): svd: unknown setting 'rang'"):
        run_trials(cells, tmp_path / "x", lambda one: ran.append(one) or 0)
    assert not ran
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--schedule=step --lr=1,2 --lr-end=0.1", "--lr-end 0.1 has no effect: --schedule cosine"),
        ("--code=sgd --error-budget=0.1,0.2", "--error-budget 0.1 has no effect"),
        ("--code=svd;topk(", r"code=topk\(: .*'topk\('"),
        ("--momentum=0.5,1.5", "--momentum must be below 1, got 1.5"),
    ],
)
def test_a_sweep_refuses_what_no_trial_reads(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *words.split()]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_of_an_option_that_one_trial_reads_nothing_is_said():
    for codes, lines in (("svd;topk", []), ("svd;qsgd", ["--compress-ratio 0.1 has no effect"])):
        axes, rest = axes_of([f"--code={codes}", "--compress-ratio=0.1"])
        told: list[str] = []
        check_grid(
            {point_name(one): trial_arguments(rest, one) for one in grid_points(axes)}, told.append
        )
        assert [line.partition(":")[0] for line in told] == lines
