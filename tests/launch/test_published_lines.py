"""`--log-format atomo`: lines that parsers of the published ATOMO's read."""

import io
import math
import re
from pathlib import Path

import pytest
from support.harness import run_threads, settings

from atomo.cli import main
from atomo.launch.display.published_lines import PublishedLines
from atomo.training.evaluation.scoring import Evaluation
from atomo.training.job.events import Event

# As `tiny_tuning_parser.py` has it, which wants one line a worker.
PARSER = re.compile(
    r"Worker: .*, Step: .*, Epoch: .* \[.* \(.*\)\], Loss: (.*), Time Cost: .*, Comp: .*, "
    r"Encode:  .*, Comm:  .*, Msg\(MB\):  .*"
)
MASTER = re.compile(r"Master: Step: (\d+), Decode Cost: (\S+), Cur lr (\S+), Gather: (\S+)")
TEST_SET = re.compile(r"Test set: Step: (\d+), Average loss: (\S+), Prec@1: (\S+) Prec@5: (\S+)")


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"n": 4}, {"n": 3, "comm_type": "Allgather"}], ids=str)
def test_the_published_parser_finds_the_loss_of_each_worker(way, tmp_path, capfd):
    chosen = settings(
        tmp_path, network="FC", code="sgd", max_steps=3, log_format="atomo", batch_size=8, **way
    )
    out, told = io.StringIO(), []

    def tell(event: Event) -> None:
        told.append(event)
        PublishedLines(out).show(event)

    run_threads(chosen, tell)
    lines = capfd.readouterr().out.splitlines()
    last = [line for line in lines if "Step: 3," in line]
    matches = [PARSER.search(line) for line in last]
    assert len(matches) == 3
    assert all(match is not None and 0 < float(match.group(1)) < 10 for match in matches)
    first = next(line for line in lines if line.startswith("Worker: 1, Step: 1,"))
    assert "Epoch: 0 [0/1437 (0%)], Loss: " in first
    second = next(line for line in lines if line.startswith("Worker: 2, Step: 2,"))
    assert "Epoch: 0 [24/1437 (2%)], Loss: " in second
    numbers = dict(re.findall(r"([\w@()]+):\s+(-?[\d.]+)", second))
    assert 0 < float(numbers["Msg(MB)"]) < 40
    assert float(numbers["Prec@1"]) <= float(numbers["Prec@5"]) <= 100
    assert [m.group(1) for m in MASTER.finditer(out.getvalue())] == ["1", "2", "3"]


@pytest.mark.slow
def test_other_runs_print_no_such_lines(tmp_path, capfd):
    run_threads(settings(tmp_path, network="FC", code="sgd", max_steps=1))
    assert "Worker:" not in capfd.readouterr().out


def test_the_results_of_a_checkpoint_are_in_percent():
    out = io.StringIO()
    values = {"top1": 0.975, "top5": 1.0, "loss": 0.25}
    PublishedLines(out).show(Evaluation(50, values, 360, "images"))
    match = TEST_SET.match(out.getvalue())
    assert match is not None
    assert match.groups() == ("50", "0.2500", "97.5", "100.0")
    PublishedLines(out).show(Evaluation(50, {"loss": 1.0}, 360, "images"))
    last = TEST_SET.search(out.getvalue().splitlines()[1])
    assert last is not None
    assert math.isnan(float(last.group(3)))
    PublishedLines(out).show(Evaluation(50, {"box_ap": 0.5}, 360, "detection"))
    assert "Average loss: nan" in out.getvalue().splitlines()[2]


def test_control_characters_of_others_are_shown() -> None:
    out = io.StringIO()
    PublishedLines(out).note("rank 1: \x1b[2Jgone")
    assert out.getvalue() == "rank 1: \\x1b[2Jgone\n"


@pytest.mark.slow
def test_the_evaluator_alone_prints_them_too(tmp_path, capfd):
    run_threads(settings(tmp_path, network="FC", code="sgd", max_steps=2))
    assert main(["evaluate", f"--model-dir={tmp_path}", "--events=atomo"]) == 0
    match = TEST_SET.match(capfd.readouterr().out)
    assert match is not None
    assert match.group(1) == "2"
    assert Path(tmp_path / "evaluations.jsonl").exists()
