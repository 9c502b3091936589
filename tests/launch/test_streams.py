"""The output of mpirun and its ranks, without mpirun's noise."""

import json
import queue
import sys
from dataclasses import asdict

import pytest

from atomo.launch.jobs.streams import EVENT_MARK, Line, Process, forward_lines
from atomo.launch.supervisor import parse_record
from atomo.training.evaluation.scoring import Evaluation
from atomo.training.job.events import Ended, to_json

RULE = "-" * 76 + "\n"
ABORT = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n"


def heard(*raw: str) -> list[str]:
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    forward_lines("ranks", iter(raw), lines)  # type: ignore[arg-type]
    texts = [lines.get_nowait().text for _ in range(lines.qsize())]
    assert texts.pop() is None
    return [text for text in texts if text is not None]


def test_an_abort_is_not_explained_twice():
    event = EVENT_MARK + to_json(Ended(3, "done"))
    output = heard("atomo: rank 2: why\n", RULE, ABORT, "\n", event + "\n", RULE, "\0\n", "after\n")
    assert output == ["atomo: rank 2: why", event, "after"]


def test_remarks_that_tell_something_get_through():
    remark = ["prterun noticed that process rank 2 exited on\n", "signal 9 (Killed).\n"]
    assert heard(RULE, *remark, RULE) == [line.strip() for line in remark]
    assert heard(RULE, *remark) == [line.strip() for line in remark]  # cut off


def test_the_words_of_ranks_get_through_a_remark():
    assert heard(RULE, ABORT, "atomo: rank 1: also\n", RULE) == ["atomo: rank 1: also"]


def test_records_are_told_from_words():
    ended, evaluation = Ended(3, "done"), Evaluation(3, {"top1": 0.5}, 10, "images")
    assert parse_record(EVENT_MARK + to_json(ended)) == ended
    assert parse_record(EVENT_MARK + json.dumps(asdict(evaluation))) == evaluation


@pytest.mark.parametrize(
    "text", ["words", "{}", EVENT_MARK, EVENT_MARK + '{"event": "En', EVENT_MARK + "{}",
             EVENT_MARK + '{"event": "Other"}', EVENT_MARK + '{"event": "Ended"}']
)  # fmt: skip
def test_torn_records_are_words(text):
    assert parse_record(text) is None


@pytest.mark.parametrize(
    ("source", "code"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("print(1)", 0)],
)
def test_an_exit_code_is_what_a_shell_would_say(source, code):
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    assert Process("it", [sys.executable, "-S", "-c", source], lines).wait() == code


def test_a_process_is_ended_however_stubborn(monkeypatch):
    monkeypatch.setattr("atomo.launch.jobs.streams.GRACE_S", 0.2)
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    process = Process("it", [sys.executable, "-S", "-c", deaf], lines)
    assert lines.get(timeout=600).text == "1"
    process.end()
    assert process.wait() == 137
