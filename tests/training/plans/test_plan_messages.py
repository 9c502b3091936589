"""`--fusion auto`: all ranks have the same messages, and finding them changes nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.harness import run_threads, settings
from support.selection import slow_but

from atomo.config.file import read_settings
from atomo.config.settings import Settings
from atomo.errors import CheckpointError
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.events import Event, Started
from atomo.training.job.job import make_job
from atomo.training.job.plan import MessagePlan, Plan
from atomo.training.records.plan_records import MESSAGES_FILE, job_hash, keep_plan, kept_messages

pytestmark = pytest.mark.usefixtures("short_trials")
CASES = [
    {"n": 3, "comm_type": "ParameterServer", "code": "topk(ratio=0.1)", "memory": "dgc"},
    {"n": 2, "comm_type": "Allgather", "code": "qsgd"},
    {"n": 2, "comm_type": "Allreduce", "code": "sgd"},
    {"n": 2, "comm_type": "PowerSGD", "code": "svd(rank=2)"},
    {"n": 2, "comm_type": "Allgather", "code": "terngrad(scale=shared)", "fusion": "mergecomp"},
]
SHORT = {"network": "networks:normed", "batch_size": 8, "max_steps": 3, "fusion": "auto"}


def found_by(chosen: Settings) -> str:
    """Runs a training to its end, and returns its text about fusion."""
    events: list[Event] = []
    run_threads(chosen, events.append)
    return next(event for event in events if isinstance(event, Started)).fusion


def repeated(folder: Path, into: Path) -> Settings:
    """Returns the settings that a run left behind, for another folder."""
    left = read_settings([folder / "settings.toml"])
    return replace(Settings(**left), train_dir=str(into)).resolved()


@pytest.mark.long(
    cases=(
        "Allgather0",
        "Allreduce",
        "ParameterServer",
        "PowerSGD",
    )
)
@pytest.mark.parametrize("case", slow_but(CASES[1:2], CASES), ids=lambda case: case["comm_type"])
def test_a_run_that_measured_first_is_bit_for_bit_one_that_was_told(case, tmp_path) -> None:
    """Measuring changes no weight, no memory, no statistic of batch norm and no order of data. A
    run repeated by its settings gets the same bits.
    """
    way = {**SHORT, **case}["fusion"]
    told = found_by(settings(tmp_path / "auto", **{**SHORT, **case}))
    assert told.startswith(f"fusion {way}: ")
    again = repeated(tmp_path / "auto", tmp_path / "told")
    assert again.fusion.startswith("cuts:")
    assert not found_by(again)
    one, other = load(tmp_path / "auto", 3), load(tmp_path / "told", 3)
    pairs = [(one.model, other.model), (one.optimizer, other.optimizer)]
    pairs += zip(one.workers, other.workers, strict=True)
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        assert all(tensor.equal(theirs[name]) for name, tensor in mine.items())


@pytest.mark.long
def test_a_run_that_goes_on_keeps_its_messages(tmp_path, monkeypatch) -> None:
    short = {**SHORT, "n": 2, "comm_type": "Allgather", "max_steps": 1}
    told = found_by(settings(tmp_path, **short))
    monkeypatch.setattr(
        "atomo.training.planner.planner.search_messages", None
    )  # nothing is measured again
    assert found_by(settings(tmp_path, **{**short, "max_steps": 2})) == told


FOUND = MessagePlan("auto", (1, 3), "of this", 0.5, 0.75, 1.0, 2.0, (1.0, 2.0))


def test_messages_of_another_job_are_not_taken_over(tmp_path) -> None:
    keep_plan(tmp_path, Plan(messages=FOUND))
    chosen = settings(tmp_path, fusion="auto")
    assert kept_messages(chosen, "of this") == FOUND
    assert kept_messages(chosen, "of that") is None
    assert kept_messages(replace(chosen, resume="never"), "of this") is None
    assert kept_messages(replace(chosen, train_dir=str(tmp_path / "new")), "of this") is None


def test_messages_of_other_hosts_are_not_taken_over_and_a_line_says_so(tmp_path) -> None:
    notes: list[str] = []
    keep_plan(tmp_path, Plan(messages=replace(FOUND, hosts=("a", "b"), step_s=0.25)))
    chosen = settings(tmp_path, fusion="auto")
    kept = kept_messages(chosen, "of this", ("a", "b"), notes.append)
    assert kept == replace(FOUND, hosts=("a", "b"), step_s=0.25)
    assert not notes
    assert kept_messages(chosen, "of this", ("a", "c"), notes.append) is None
    assert kept_messages(chosen, "of that", ("a", "b"), notes.append) is None
    assert "it was measured on a (1), b (1), and the ranks are on a (1), c (1) now" in notes[0]
    assert "it is of other codecs, another network or other settings" in notes[1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"since": 0}',
        '{"earlier": [1]}',
        '{"cuts": [3, 1]}',
        '{"cuts": "1,2"}',
        '{"cuts": [1e99]}',
    ],
)
def test_a_file_that_is_no_such_thing_is_refused(text, tmp_path) -> None:
    (tmp_path / MESSAGES_FILE).write_text(text)
    with pytest.raises(CheckpointError, match="remove it to have messages found anew"):
        kept_messages(settings(tmp_path, fusion="auto"), "of this")


def test_a_job_has_the_hash_of_earlier_versions() -> None:
    """Plans of messages of earlier versions stay valid."""
    chosen = Settings(network="LeNet", code="topk(ratio=0.1)", n=3).resolved()
    assert job_hash(make_job(chosen, 3), "auto") == "6c2383691b70f3da"
