"""Pages of single runs: true statements, a sound structure, and folders of every kind."""

import json
import math

import numpy as np
import pytest
from support.run_folders import parse_page, step_line, write_run

from atomo.cli import main
from atomo.config.settings import Settings
from atomo.report.run_page import run_html, write_report


def text_of(folder):
    return parse_page(run_html(folder)).text


def test_a_page_says_how_the_run_ended_and_what_it_cost(tmp_path):
    text = text_of(write_run(tmp_path / "x"))
    seconds = sum(0.1 + 0.01 * (step % 3) for step in range(1, 21))
    assert f"Finished after 20 steps and 0:0{seconds:.0f} of training" in text
    assert f"test accuracy {1 - math.exp(-2):.2%}. measured" in text
    assert "Gradients took 50 times fewer bytes: 1.0 kB a step instead of 50.0 kB. measured" in text
    # 49,000 bytes saved, in the 6 ms of encoding and decoding.
    assert "Compression pays on links slower than 65.3 Mbit/s" in text
    assert "6 ms of encoding and decoding a step. predicted" in text
    assert "Most of a step goes into forward and backward passes: 60 of 110 ms (55%)" in text
    assert "Worker 2 was the slowest in 100% of the steps: 1.25 times the median" in text


def test_a_page_has_all_settings_and_the_command_that_repeats_the_run(tmp_path):
    folder = write_run(tmp_path / "x y", settings=Settings(lr=0.125, code="qsgd", n=5))
    text = text_of(folder)
    assert "LeNet on Digits, codec qsgd" in text
    assert "lr 0.125" in text
    assert f"atomo train --config '{folder}/settings.toml'" in text
    assert "atomo explain --network LeNet --dataset Digits --batch-size 32 --workers 4" in text


@pytest.mark.parametrize("name", ["seconds", "steps", "bytes"])
def test_each_curve_is_drawn_over_each_cost(tmp_path, name):
    page = parse_page(run_html(write_run(tmp_path)))
    assert page.text.count(f"Training loss over {name}") == 2  # the caption and the title
    assert page.text.count(f"Test accuracy over {name}") == 2


def test_a_dense_run_is_said_to_be_dense(tmp_path):
    text = text_of(write_run(tmp_path, up_bytes=50_000))
    assert "Gradients were sent uncompressed" in text
    assert "dense, predicted" not in text
    assert "Compression pays" not in text


def test_the_plan_of_a_run_predicts_dense_steps(tmp_path):
    folder = write_run(tmp_path)
    plan = {
        "codes": {"a": "sgd"}, "memory": "none", "error": 0.0, "budget": 0.1, "step_s": 0.11,
        "dense_s": 0.5, "took_s": 1.0, "said": {}, "since": 1,
    }  # fmt: skip
    (folder / "auto.json").write_text(json.dumps(plan))
    text = text_of(folder)
    assert "Compression pays on these links: steps take 110 ms, and dense steps" in text
    assert "would take 500 ms. predicted" in text
    assert "auto: 1 tensor sgd" in text


def test_a_loss_that_is_no_number_is_named_and_interrupts_the_line(tmp_path):
    changes = {step: {"loss": math.nan} for step in (7, 8, 20)}
    page = parse_page(run_html(write_run(tmp_path, changes=changes, end="")))
    assert "The loss of 3 steps is no finite number; step 7 is the first. measured" in page.text
    assert "Unfinished after 20 steps" in page.text
    assert "the loss is no finite number any more. measured" in page.text


def test_faults_are_counted_by_worker_and_samples_are_accounted_for(tmp_path):
    changes = {
        3: {"refused": 2, "refused_from": [1, 1], "refused_for": ["checksum", "checksum"],
            "images_refused": 64, "images_used": 0, "workers": 0},
        4: {"images_late": 32, "images_used": 32, "late": 1, "workers": 1, "storage_failures": 5},
    }  # fmt: skip
    text = text_of(write_run(tmp_path, changes=changes))
    assert "worker 1 checksum 2" in text
    assert "Of 1,280 samples, 32 late and 64 refused. measured" in text
    assert "5 attempts to write files failed" in text
    assert "Gradients that counted in a step" in text
    assert "Nothing was late" not in text


def test_rounds_of_local_steps_have_a_section(tmp_path):
    changes = {
        step: {"round": step // 5, "round_steps": 5, "outer_rate": 0.7, "correlation": 0.1 * step}
        for step in (5, 10, 15, 20)
    }
    folder = write_run(tmp_path, changes=changes)
    times = {"event": "RankTimes", "rank": [0, 1], "compute_s": [0.1, 0.2], "encode_s": [0, 0.1]}
    (folder / "events.jsonl").write_text(json.dumps(times) + "\n")
    text = text_of(folder)
    assert "Times by rank are means over exchanges" in text
    assert "Rank 1 computed and encoded longest: 300 ms a step; the median" in text
    assert "rounds 4 steps in a round 5 to 5" in text
    assert "Rounds of local steps" not in text_of(write_run(tmp_path / "plain"))


@pytest.mark.parametrize("end", ["interrupted", "done"])
def test_the_end_is_that_of_the_marker(tmp_path, end):
    word = {"done": "Finished", "interrupted": "Interrupted"}[end]
    assert f"{word} after 20 steps" in text_of(write_run(tmp_path, end=end))


def test_layers_are_listed_with_their_payloads(tmp_path):
    folder = write_run(tmp_path)
    assert "No bytes by layer" in text_of(folder)
    layer = {"name": "fc1.weight", "codec": "svd(rank=3)", "entries": 400_000, "bytes": 16_000}
    (folder / "layers.json").write_text(json.dumps({"rows": [layer]}))
    text = text_of(folder)
    assert "fc1.weight svd(rank=3) 400,000 1.6 MB at most 16.0 kB 100" in text
    assert "Layers were not measured" in text
    assert "Down, each layer travels as float32 weights on one host" in text
    rows = [layer | {"bytes": 8_000, "error": 0.25}, layer | {"codec": "qsgd", "error": 9.0}]
    (folder / "layer-errors.json").write_text(json.dumps({"step": 64, "rows": rows}))
    text = text_of(folder)
    assert "fc1.weight svd(rank=3) 400,000 1.6 MB 8.0 kB 200 0.25" in text
    assert "worker 1 at step 64" in text


def test_an_empty_folder_has_a_page(tmp_path):
    text = text_of(tmp_path)
    assert "This run has no steps" in text
    assert "settings.toml is missing" in text


def test_what_cannot_be_read_is_left_out_and_named(tmp_path):
    folder = write_run(tmp_path)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('[]\n{"step": "21"}\n1,2\n' + step_line(21)[:100])
    (folder / "evaluations.jsonl").write_text('{"step": 10, "top1": 0.5}\nnonsense\n')
    (folder / "settings.toml").write_text("lr = = 1")
    (folder / "finished.json").write_text("[]")
    (folder / "auto.json").write_text('{"codes": 3}')
    (folder / "fusion.json").symlink_to(folder / "auto.json")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    text = text_of(folder)
    assert "metrics.jsonl: 4 lines are no steps, and are left out." in text
    assert "evaluations.jsonl: 1 lines are no evaluations, and are left out." in text
    assert text.count("Left out: ") == 4
    assert "after 20 steps" in text
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_markup_in_every_text_is_escaped(tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&]]>-->"
    folder = write_run(tmp_path / "<b onclick=x>&amp;")
    settings = {"network": evil, "dataset": evil, "code": evil, "task": evil, evil: evil}
    text = "".join(
        f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items()
    )
    (folder / "settings.toml").write_text(text)
    refused = {"refused": 1, "refused_from": [1], "refused_for": [evil]}
    (folder / "metrics.jsonl").write_text(f"{step_line(1, **refused)}\n{step_line(2)}\n")
    (folder / "evaluations.jsonl").write_text(json.dumps({"step": 1, evil: 0.5}) + "\n")
    events = [{"event": "Caution", "text": evil, "at": 1e9}, {"event": evil, "text": evil},
              {"event": "Launched", "command": evil, "versions": evil, "hosts": evil},
              {"event": "RankTimes", "rank": [0, "1"], "compute_s": [0.1, evil]}]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    layers = [{"name": evil, "codec": evil, "entries": evil}, {"entries": 10, "bytes": 8}, evil]
    (folder / "layers.json").write_text(json.dumps({"rows": layers}))
    errors = [{"name": evil, "codec": evil, "error": evil, "bytes": -1}, evil, {"error": 1e400}]
    record = json.dumps({"step": evil, "rows": errors})
    (folder / "layer-errors.json").write_text(record)
    html = run_html(folder)
    page = parse_page(html)
    assert "alert(1)" in page.text
    assert "<script" not in html
    assert "onerror=alert" not in html.replace("src=x onerror=alert(1)&gt;", "")


def test_words_between_backticks_are_code(tmp_path):
    folder = write_run(tmp_path, every=99)
    assert "<code>atomo evaluate</code> does it." in run_html(folder)
    note = {"event": "Note", "text": "a ` and <b>`"}
    (folder / "events.jsonl").write_text(json.dumps(note) + "\n")
    assert "a <code> and &lt;b&gt;</code>" in run_html(folder)
    (folder / "events.jsonl").write_text(json.dumps(note | {"text": "one ` <b>"}) + "\n")
    assert "one ` &lt;b&gt;" in run_html(folder)


def test_absurd_numbers_are_shown_without_an_error(tmp_path):
    absurd = [10**400, -(10**400), 1e308, -1e308, math.inf, -math.inf, math.nan, True, "7", None,
              [], {}]  # fmt: skip
    names = list(json.loads(step_line(1)))
    lines = []
    for step, value in enumerate(absurd, 1):
        lines.append(step_line(step, **{name: value for name in names if name != "step"}))
    lines += [step_line(2**62), step_line(-5), json.dumps({"step": 3})]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with np.errstate(over="ignore", invalid="ignore"):
        parse_page(run_html(tmp_path))


@pytest.mark.slow
def test_many_steps_make_a_small_page(tmp_path):
    write_run(tmp_path, steps=0)
    lines = [step_line(step, loss=2.0 + math.sin(step)) for step in range(1, 1001)]
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for begin in range(0, 100_000, 1000):
            for place, line in enumerate(lines, 1):
                file.write(line.replace(f'"step": {place},', f'"step": {begin + place},', 1) + "\n")
    html = run_html(tmp_path)
    assert "100,000 steps" in html
    assert len(html) < 200_000


def test_the_command_writes_the_page_and_prints_its_path(tmp_path, capsys):
    folder = write_run(tmp_path / "x")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    first = (folder / "report.html").read_text()
    parse_page(first)
    assert write_report(folder).read_text() == first  # equal records make equal pages


def test_a_missing_folder_is_named(tmp_path, capsys):
    assert main(["report", str(tmp_path / "missing")]) == 2
    assert f"{tmp_path / 'missing'} is no folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    folder = write_run(tmp_path / "x")
    (folder / "report.html").mkdir()
    assert main(["report", str(folder)]) == 4
    assert "report.html: it is a folder" in capsys.readouterr().err
