"""The display of a run: plain lines, the live panel, and the table at the end."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from atomo.launch.display.lines import Display, PlainLines
from atomo.launch.display.panel import LivePanel
from atomo.launch.display.summary import Summary
from atomo.training.evaluation.scoring import Evaluation
from atomo.training.job.events import (
    Ended,
    Event,
    ProbedAgain,
    Saved,
    Started,
    StepDone,
    from_json,
    to_json,
)

STARTED = Started("LeNet", "Digits", "svd(rank=3)", "none", 2, 656_080, 1437, 22, 1, 40, "/r/x")
STEP = StepDone(
    step=1, epoch=0.05, loss=2.5, accuracy=0.25, lr=0.02, workers=2, images_per_s=1234.0,
    up_bytes=52_000, down_bytes=5_200_000, dense_bytes=5_200_000, step_s=0.5, compute_s=0.1,
    encode_s=0.2, send_s=0.001, wait_s=0.05, decode_s=0.002, update_s=0.001, eta_s=75.0,
)  # fmt: skip
SCORE = Evaluation(40, {"top1": 0.9694, "top5": 1.0, "loss": 0.0856}, 360, "images")


def plain(log_interval: int, *events: Event | Evaluation) -> list[str]:
    out = io.StringIO()
    display = PlainLines(out, log_interval)
    for event in events:
        display.show(event)
    display.close()
    return out.getvalue().splitlines()


def table(*events: Event | Evaluation, width: int = 100) -> str:
    summary = Summary()
    for event in events:
        summary.add(event)
    console = Console(file=io.StringIO(), width=width)
    console.print(summary.table())
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_plain_output_is_a_line_for_each_thing_worth_one():
    lines = plain(1, STARTED, STEP, Saved(1, "/r/x/step-00000001.json"), SCORE, Ended(1, "done"))
    assert len(lines) == 5
    assert "LeNet (656,080 parameters) on Digits (1,437 images)" in lines[0]
    assert lines[1].startswith("step 1/40 epoch 0.05 loss 2.5000 lr 0.02 1234 images/s")
    assert "sent 52.0 kB (dense 5.2 MB, 100.0x) down 5.2 MB ms: compute 100.0 " in lines[1]
    assert " wait 50.0 decode " in lines[1]
    assert lines[1].endswith("ETA 1:15")
    assert "top-1 96.94%" in lines[3]
    assert lines[4] == "training ended at step 1: done"


def test_absurd_times_are_shown_and_end_nothing():
    """An older run may have them in its events; sums of finite ones may be infinite."""
    step = replace(STEP, wait_s=1e308, step_s=1e308, eta_s=float("inf"), compute_s=float("nan"))
    shown = table(STARTED, step, step, Ended(2, "done"))
    assert "Finished" in shown
    assert "inf s" in shown
    assert plain(1, STARTED, step)[1].endswith("ETA inf s")


def test_a_run_that_measures_again_says_what_came_of_it():
    event = ProbedAgain(202, 0.1294, 0.1, 0.1288, 0.1037, True, 3.14, "auto: bf16\nfusion auto: 2")
    assert from_json(to_json(event)) == event
    assert plain(1, event) == [
        "steps take 129.4 ms and not 100.0, so all ranks measured again, in 3.1 s: 128.8 ms "
        "predicted as it was, 103.7 with other codecs or messages, from step 202 on",
        "auto: bf16",
        "fusion auto: 2",
    ]
    (line,) = plain(1, replace(event, changed=False))
    assert line.endswith("128.8 ms predicted as it is; nothing gains enough on that, and it stays")


def test_the_table_says_what_became_of_gradients_that_did_not_count():
    steps = [
        replace(STEP, asked=3, workers=3),
        replace(STEP, asked=3, workers=2, late=0, lost=1),
        replace(STEP, asked=2, workers=1, late=0, under_way=1),
    ]
    assert "8: 6 used, 0 late, 1 lost, 1 under way" in table(STARTED, *steps)
    assert "8: 6 used, 1 late, 1 lost │" in " ".join(
        table(STARTED, *steps, Ended(3, "done", late=1)).split()
    )
    assert "gradients  " not in table(STARTED, replace(STEP, asked=2))


def test_a_step_that_workers_repeat_says_how_long_that_takes():
    assert (
        " wait 50.0 follow 30.0 decode 2.0 " in plain(1, STARTED, replace(STEP, follow_s=0.03))[1]
    )


@pytest.mark.parametrize(("interval", "count"), [(1, 40), (10, 4), (15, 3), (100, 1)])
def test_the_log_interval_thins_out_the_steps_but_never_the_last(interval, count):
    lines = plain(interval, STARTED, *(replace(STEP, step=step) for step in range(1, 41)))
    assert len(lines) == 1 + count
    assert lines[-1].startswith("step 40/40")


def test_a_run_that_continues_says_from_where():
    assert "continued at step 7;" in plain(1, replace(STARTED, first_step=7))[0]


def test_a_run_names_its_nesterov_momentum():
    assert "memory none, 1 m" in plain(1, STARTED)[0]
    assert "memory none, Nesterov momentum, 1 m" in plain(1, replace(STARTED, nesterov=True))[0]


@pytest.mark.parametrize("width", [50, 80, 110, 200])
def test_the_live_panel_fits_every_terminal(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=40)
    display = LivePanel(console)
    for event in (STARTED, STEP, replace(STEP, step=20), SCORE, Ended(20, "interrupted")):
        display.show(event)
    display.note("[bold]words[/bold] of a rank " + "x" * 3 * width)
    display.close()
    screen = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]words[/bold]" in screen.replace("\n", "")
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1  # the cursor is back
    assert isinstance(display, Display)


def test_the_table_adds_up_the_steps():
    second = replace(STEP, step=40, up_bytes=48_000, down_bytes=48_000, follow_s=0.03)
    text = table(STARTED, STEP, second, SCORE, Saved(40, "m"), Ended(40, "done"))
    assert "Finished" in text
    assert "96.94%" in text
    assert "(of step" not in text
    assert "50.0 kB (dense 5.2 MB)" in text
    assert "104.0x fewer bytes" in text
    assert "2.6 MB (weights 5.2 MB)" in text
    assert "3.9x fewer bytes" in text
    assert "500 ms (compute 100, encode 200, send 1, wait 50, follow 15)" in text
    assert "0:01" in text
    for name in ("step-*.json", "metrics.jsonl", "evaluations.jsonl", "tensorboard"):
        assert name in text


def test_the_table_names_no_file_that_is_not_there():
    text = table(STARTED, STEP)
    assert "Ended early" in text
    assert "metrics.jsonl" in text
    for name in ("step-*.json", "evaluations.jsonl", "tensorboard", "accuracy"):
        assert name not in text


def test_the_table_says_of_which_step_the_accuracy_is():
    assert "(of step 40)" in table(STARTED, replace(STEP, step=41), SCORE)


@pytest.mark.parametrize(
    ("events", "title"),
    [
        ([STARTED, STEP, Ended(1, "interrupted")], "Interrupted"),
        ([replace(STARTED, first_step=41), Ended(40, "done")], "No steps were left"),
        ([], "Ended early"),
    ],
)
def test_the_table_says_how_it_ended(events, title):
    assert title in table(*events)


def test_a_long_path_stays_whole(tmp_path):
    folder = "/" + "long/" * 30
    text = table(replace(STARTED, train_dir=folder), STEP, width=60)
    cells = "".join(line.strip("│ ").rpartition("│")[2].strip() for line in text.splitlines())
    assert f"{folder.rstrip('/')}/metrics.jsonl" in cells


def test_a_folder_named_after_settings_files_keeps_its_brackets():
    folder = "/runs/[cifar.resnet20]+[dgc.wm5]-20260101-000000"
    assert f"{folder}/metrics.jsonl" in table(replace(STARTED, train_dir=folder), STEP)


def test_the_best_checkpoint_is_named_where_it_is_not_the_last():
    worse = replace(SCORE, step=60, values={"top1": 0.5, "top5": 1.0, "loss": 0.1})
    assert "best test" not in table(SCORE, Ended(40, "done"))
    text = table(SCORE, worse, Ended(60, "done"))
    assert "50.00%" in text
    assert "best test accuracy" in text
    assert "96.94% (of step 40)" in text
